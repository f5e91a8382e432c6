"""Render untrusted HTML, measure how similar two pages look, and say in words how they differ.

Rendering. A headless Chromium, driven by Playwright, takes a picture of the whole page, in a viewport of 1280 x 720.
Pages are untrusted, so nothing that they link to is fetched. Six layers of protection:
  1. JavaScript is off.
  2. The page has a Content-Security-Policy header: `sandbox` (no scripts, forms, pop-ups, plugins, automatic refresh or
     autoplay), and as sources only inline styles, Tailwind's hosts, data: images and the two picture hosts.
  3. Every request is intercepted. Tailwind 2.2.19 is served from a local copy, cut to the rules that the page can use
     (twice as fast). picsum.photos/id/48/W/H and source.unsplash.com/random/WxH are served a drawn picture of that
     size. Everything else is refused.
  4. The browser has a dead proxy and a resolver that knows no host.
  5. The browser runs in a network namespace without any interface, and in Chromium's own sandbox, if the system allows
     them; `Renderer.isolation` says "network namespace" or "dead proxy". If root starts it, it runs as user nobody.
  6. Limits: a height of 20,000 pixels, 1 MB of HTML, 10 s. A page that fails is tried once more in a fresh browser,
     because a busy machine may be to blame. Memory has no limit: a page may use a gigabyte until its time is over.
The same bytes give the same pixels. Animations are finished, marquees and players stand still, no pointer hovers, and
the fonts come from one pinned list. Exceptions: CSS animations inside an SVG picture, <progress> in frames and shadow
trees, and pictures that a page requests only after an animation. Shadow trees appear in the picture, but not in the
layout.

Similarity. cosine(a, b) of the embeddings of two pictures. The encoder is a CLIP or SigLIP (the paper uses CLIP
ViT-B/32), or "layout", a small embedding of colours and edges without weights. Do not mix the numbers of different
encoders. There are two views. "centre" is the paper's: the encoder's processor scales the short side and crops the
centre, so it never sees the navigation bar and the footer of a long page. "page" scales the whole page to a square.

  python render.py --setup                                    # once: Tailwind's stylesheet into cache/

    with Renderer() as renderer:
        agent, reference = (renderer.render(page, layout=True) for page in (one, other))
    embed = load_encoder()
    cosine(embed(agent), embed(reference))                      # 1.0 for equal pages
    in_words(compare_pages(agent.layout, reference.layout))     # "The header should be blue, not green. ..."
"""

import argparse
import asyncio
import base64
import collections
import concurrent.futures
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import html as html_entities
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from records import atomic_write, die, first_line

TAILWIND_FILE = Path(__file__).resolve().parent / "cache/tailwind-2.2.19.min.css"
TAILWIND_SHA256 = "b6ad97402eddb903e7a5d7a73ee47a679204efbdda4521a391cbad9df509b932"
TAILWIND_LINK = "https://cdn.jsdelivr.net/npm/tailwindcss@2.2.19/dist/tailwind.min.css"
TAILWIND_TAG = f'<link href="{TAILWIND_LINK}" rel="stylesheet">'
PAGE_ADDRESS = "https://page.invalid/"  # .invalid never resolves (RFC 2606); only the interception answers
PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8", "Referrer-Policy": "no-referrer", "X-DNS-Prefetch-Control": "off",
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline' https://cdn.jsdelivr.net "
                               "https://unpkg.com https://cdnjs.cloudflare.com; img-src data: https://picsum.photos "
                               "https://source.unsplash.com; frame-src 'none'; object-src 'none'; base-uri 'none'; "
                               "form-action 'none'"}
WIDTH, HEIGHT = 1280, 720  # of the viewport, in pixels
MAX_HEIGHT = 20_000  # pixels
MAX_HTML = 1_000_000  # bytes
PAGES_PER_BROWSER = 500  # then a fresh one takes its place, because Playwright remembers every request
NOBODY = 65534  # user and group of the browser if this process is root


# ------------------------------------------------------------------------------------------------ pages as text

def extract_page(text):
    """The page in an agent's text, or None.

    It is the last <html> ... </html>, or everything from that <html> on if it was cut off. An <html> that a tag follows
    goes before one that may be a word in a sentence. If there is no <html>, it is the last <body> ... </body>, with the
    <head> before it. A <body> without an end may be a word in a question.
    """
    text = text or ""
    doctype = r"(?i)(?:<!doctype[^>]{0,200}>\s{0,200})?"  # bounded, so that every text takes linear time
    start = end = head = None
    html = doctype + r"<html\b"
    with_tag = html + r"(?=[^<>]{0,200}>\s{0,200}<(?!/?html\b))"    # wins: in a sentence none follows
    for mark in [*re.finditer(html, text), *re.finditer(with_tag, text)]:
        start = mark.start()
    if start is not None:
        page = text[start:]
        closing = re.search(r"(?i)</html\s*>", page)
        return page[:closing.end()] if closing else page.rstrip().removesuffix("```").rstrip()

    for mark in re.finditer(r"(?i)</body\s*>", text):
        end = mark.end()
    for mark in re.finditer(doctype + r"<(?:(head)|body)\b", text[:end or 0]):
        if not mark[1]:
            start = (head or mark).start()
        head = mark if mark[1] else None
    return None if start is None else text[start:end]


def rewrite_images(page):
    """source.unsplash.com/random/WxH/?... (gone since 2024) -> the one picture that pages may show, at that size."""
    sized = r"(?:random|featured)/?(\d{1,4})x(\d{1,4})/?(?:\?[^\s\"')>]*)?"
    return re.sub(rf"https?://source\.unsplash\.com/(?:{sized}|[^\s\"')>]*)",
                  lambda match: f"https://picsum.photos/id/48/{match[1] or 640}/{match[2] or 480}", page)


# ------------------------------------------------------------------------------------------------ rendering

@dataclasses.dataclass
class Picture:
    """A rendered page. status: "ok", "timeout", "too large" or "error: ..."; png is empty unless it is "ok"."""

    status: str
    png: bytes = b""
    height: int = 0
    layout: dict | None = None

    @functools.cached_property
    def rgb(self):
        """(height, width, 3) bytes; a white viewport if nothing was rendered."""
        if not self.png:
            return np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
        return np.asarray(Image.open(io.BytesIO(self.png)).convert("RGB"))

    @functools.cached_property
    def blank(self):
        """Whether every pixel has the same colour."""
        return bool((self.rgb == self.rgb[0, 0]).all())


@dataclasses.dataclass
class Slot:
    """One browser with its one page."""

    folder: Path
    page: object = None
    cdp: object = None
    html: str = ""
    renders: int = 0

    def kill(self):
        """Kill the browser and its children, which may not react to anything else, and remove its files."""
        with contextlib.suppress(OSError, ValueError):  # Playwright makes it the leader of a process group
            os.killpg(int((self.folder / "pid").read_text()), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.page = None


class Renderer(contextlib.AbstractContextManager):
    """A few browsers in the background, each with one tab that is reused.

    The browsers live in one thread with its own event loop. So any thread may call render(), and asyncio.wrap_future()
    turns the future that submit() returns into an awaitable.
    """

    def __init__(self, browsers=2, timeout=10.0):
        self.stylesheet, self.executable = load_stylesheet(), find_chromium()
        self.timeout, self.launch_modes = timeout, launch_modes()
        self.idle, self.closing = asyncio.Queue(), asyncio.Event()
        started = concurrent.futures.Future()
        self.thread = threading.Thread(target=self._run, args=[browsers, started], daemon=True)
        self.thread.start()
        started.result()

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(RuntimeError):  # closed before
            self.loop.call_soon_threadsafe(self.closing.set)
        self.thread.join(timeout=30)

    def render(self, page, layout=False):
        """HTML -> Picture. Never raises, whatever the page does; `status` says what went wrong."""
        return self.submit(page, layout).result()

    def layout(self, page):
        """HTML -> {"width", "height", "background", "elements": [{tag, box, text, ...}]}, or None on failure."""
        return self.submit(page, layout=True, picture=False).result().layout

    def submit(self, page, layout=False, picture=True):
        """Like render(), but returns a concurrent.futures.Future of the Picture."""
        return asyncio.run_coroutine_threadsafe(self._render(page, layout, picture), self.loop)

    def render_many(self, pages):
        """Yield the Pictures of many pages, in order, reading just enough pages ahead to keep all browsers busy."""
        waiting = []
        for page in pages:
            waiting.append(self.submit(page))
            if len(waiting) > 4 * len(self.slots):
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()

    # -- inside the loop's thread: rendering one page

    async def _render(self, page, layout, picture):
        if len(page.encode("utf-8", "replace")) > MAX_HTML:
            return Picture("too large")
        slot = await self.idle.get()
        try:
            for _ in range(2):  # the browser or a busy machine may be to blame for a failure
                try:
                    if slot.page is None or slot.renders >= PAGES_PER_BROWSER:
                        await self._open(slot)
                    return await asyncio.wait_for(self._take_picture(slot, page, layout, picture), self.timeout)
                except Exception as error:
                    slot.kill()
                    status = "timeout" if isinstance(error, TimeoutError) else f"error: {first_line(error)}"
            return Picture(status)
        finally:
            self.idle.put_nowait(slot)

    async def _take_picture(self, slot, page, layout, picture):
        slot.html, slot.renders = page, slot.renders + 1
        # Stops animations in frames and shadow trees too, which PREPARE does not reach.
        await slot.cdp.send("Animation.setPlaybackRate", {"playbackRate": 0})
        await slot.page.goto(PAGE_ADDRESS, wait_until="load", timeout=0)  # _render has the time limit
        answer = await slot.cdp.send("Runtime.evaluate", {
            "expression": f"({PREPARE})({json.dumps(layout)})", "returnByValue": True})
        measured = answer["result"]["value"]  # raises if the script failed on this page
        height = min(max(measured["height"], HEIGHT), MAX_HEIGHT)
        png = b""
        if picture:
            if "marquee" in page.lower():  # in frames and shadow trees it moves to its start with the first frame
                await self._screenshot(slot, 1, 1)
            png = await self._screenshot(slot, WIDTH, height)
        return Picture("ok", png, height, measured if layout else None)

    async def _screenshot(self, slot, width, height):
        shot = await slot.cdp.send("Page.captureScreenshot", {
            "format": "png", "optimizeForSpeed": True, "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}})
        return base64.b64decode(shot["data"])

    # -- inside the loop's thread: the browsers

    def _run(self, browsers, started):
        """Live in a folder, which is removed at the end. The future `started` is told when all have started."""
        try:
            with tempfile.TemporaryDirectory(prefix="render-", ignore_cleanup_errors=True) as folder:
                Path(folder).chmod(0o755)  # the browser may run as another user
                self.slots = [Slot(Path(folder) / f"browser-{n}") for n in range(browsers)]
                self.fonts = pinned_fonts(Path(folder))
                asyncio.run(self._live(started))
        except Exception as error:
            started.set_exception(RuntimeError(first_line(error)))

    async def _live(self, started):
        """Start the browsers, and keep them until close() is called."""
        from playwright.async_api import async_playwright
        self.loop = asyncio.get_running_loop()
        async with async_playwright() as self.playwright:
            try:
                for slot in self.slots:
                    await self._open(slot)
                    self.idle.put_nowait(slot)
                started.set_result(None)
                await self.closing.wait()
            finally:
                for slot in self.slots:
                    slot.kill()

    async def _open(self, slot):
        """Open a tab in a fresh browser."""
        browser = await self._launch(slot)
        slot.renders = 0
        slot.page = await browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, java_script_enabled=False, accept_downloads=False,
            service_workers="block", locale="en-US", timezone_id="UTC", reduced_motion="reduce", color_scheme="light")
        await slot.page.context.route("**/*", functools.partial(self._answer, slot))
        slot.cdp = await slot.page.context.new_cdp_session(slot.page)
        await slot.cdp.send("Animation.enable")
        await slot.cdp.send("Input.setIgnoreInputEvents", {"ignore": True})  # else a pointer at (0, 0) may hover

    async def _launch(self, slot):
        """Start a fresh browser in the safest mode that works; later browsers use the same mode."""
        profile, script = slot.folder / "profile", slot.folder / "start.sh"
        environment = {"PATH": os.environ["PATH"], "HOME": str(profile), "TMPDIR": str(profile), "LANG": "C.UTF-8",
                       "TZ": "UTC", **self.fonts}
        for mode in self.launch_modes:
            isolation, command, sandbox = mode
            slot.kill()
            profile.mkdir(parents=True, exist_ok=True)
            if os.geteuid() == 0:
                os.chown(profile, NOBODY, NOBODY)
            # Playwright starts a program, not a command line. So it starts a script, which becomes the browser by exec.
            script.write_text(f"#!/bin/sh\necho $$ > '{slot.folder}/pid'\n"
                              f"exec {command} '{self.executable}' \"$@\" '--user-data-dir={profile}'\n")
            script.chmod(0o755)
            try:
                browser = await self.playwright.chromium.launch(
                    executable_path=script, args=BROWSER_FLAGS, env=environment, chromium_sandbox=sandbox)
            except Exception as error:
                problem = first_line(error)
            else:
                self.launch_modes, self.isolation, self.version = [mode], isolation, browser.version
                return browser
        raise RuntimeError(f"Chromium ({self.executable}) does not start: {problem}")

    async def _answer(self, slot, route):
        """Serve the page itself, and the stand-ins for the few addresses that it may use; refuse everything else."""
        request = route.request
        with contextlib.suppress(Exception):  # the browser may have been killed meanwhile
            navigates = request.is_navigation_request()
            if request.url == PAGE_ADDRESS and navigates and request.frame == slot.page.main_frame:
                await route.fulfill(headers=PAGE_HEADERS, body=slot.html.encode("utf-8", "replace"))
            elif answer := answer_request(request.url, self.stylesheet, slot.html):
                await route.fulfill(content_type=answer[0], body=answer[1])
            else:
                await route.abort("aborted" if navigates else "blockedbyclient")


# ------------------------------------------------------------------------------------------------ similarity

def cosine(a, b):
    """Cosine of two embeddings. A zero vector (a white page in "layout") gives 1 with another zero vector, else 0."""
    length = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
    if length == 0.0:
        return float(not np.any(a) and not np.any(b))
    return float(np.dot(a, b) / length)


def unit(vector):
    """The vector scaled to length 1; zero stays zero."""
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def pool(picture, cells):
    """(H, W, C) -> a unit vector: the means of cells x cells cells; H and W are multiples of cells."""
    height, width, channels = picture.shape
    means = picture.reshape(cells, height // cells, cells, width // cells, channels).mean(axis=(1, 3))
    return unit(means.ravel())


def layout_embedding(rgb, view):
    """A picture -> a unit vector of colours and edges on grids, without learned weights.

    The view (the whole page or its centre square) is scaled to 128 x 128. The vector has five parts of unit length, so
    the cosine of two pages is the mean of the parts' cosines (if no part is zero). Three parts are ink (white minus
    colour, three channels) on grids of 4, 8 and 16 cells a side: they see which colour is where. Two parts are edges
    (absolute differences of brightness, across and down) on grids of 8 and 16: they see text, borders and order. White
    counts as zero, so two pages are not similar just because both are mostly white.
    """
    if view == "centre":
        height, width, _ = rgb.shape
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        rgb = rgb[top:top + side, left:left + side]
    picture = Image.fromarray(rgb).resize((128, 128), Image.Resampling.BOX)
    ink = 1.0 - np.asarray(picture, np.float32) / 255.0  # (128, 128, 3)
    grey = ink.mean(axis=-1)
    across, down = np.diff(grey, axis=1, prepend=grey[:, :1]), np.diff(grey, axis=0, prepend=grey[:1])
    edges = np.abs(np.stack([across, down], axis=-1))  # (128, 128, 2)
    return unit(np.concatenate([pool(ink, 4), pool(ink, 8), pool(ink, 16), pool(edges, 8), pool(edges, 16)]))


def load_encoder(name="layout"):
    """"layout", or the folder or hub name of a CLIP or SigLIP -> embed(picture, view="page"|"centre") -> unit vector.

    Records carry embed.name, to keep the encoders apart.
    """
    if name != "layout":
        try:
            import torch
            from transformers import AutoImageProcessor, AutoModel

            device = "cuda" if torch.cuda.is_available() else "cpu"
            model = AutoModel.from_pretrained(name).to(device).eval()
            processor = AutoImageProcessor.from_pretrained(name)
            side = model.config.vision_config.image_size
        except Exception as error:  # of many types, such as SafetensorError
            raise RuntimeError(f"the image encoder {name!r} cannot be loaded as a CLIP or SigLIP: "
                               + first_line(error)) from None

    def embed(picture, view="page"):
        if name == "layout":
            return layout_embedding(picture.rgb, view)
        image = Image.fromarray(picture.rgb)
        if view == "page":  # at the encoder's own size its processor crops nothing
            image = image.resize((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
        with torch.inference_mode():
            features = model.get_image_features(**processor(images=image, return_tensors="pt").to(device))
        features = getattr(features, "pooler_output", features)
        return unit(features[0].float().cpu().numpy())

    embed.name = name
    return embed


# ------------------------------------------------------------------------------------------------ differences in words

NO_DIFFERENCE = "I see no difference."
NO_PAGE = "I see no page. Please show me one."
CLAUSES = {  # aspect -> what is said about it; want: in the reference page, have: in the agent's page
    "colour": "should be {want}, not {have}",
    "letters": "should be in {want} letters, not {have}",
    "place": "should be {want}, not {have}",
    "size": "should be {want}",
    "shape": "should be {want}",
    "bold": "should {want} bold",
    "gradient": "should {want} a gradient or a picture behind it",
    "words": "should say {want}",
    "order": "should come before the {want}",
    "layout": "should stand {want}",
    "missing": "is missing, {want}",
    "extra": "should not be there",
}
GREYS = {"white": "ffffff", "black": "000000", "light gray": "f3f4f6 e5e7eb d1d5db", "gray": "9ca3af 6b7280",
         "dark gray": "4b5563 374151 1f2937 111827"}
COLOURS = {  # names for Tailwind's shades 100 to 900
    "light red": "fee2e2 fecaca fca5a5", "red": "f87171 ef4444 dc2626", "dark red": "b91c1c 991b1b 7f1d1d",
    "light yellow": "fef3c7 fde68a fcd34d", "yellow": "fbbf24 f59e0b d97706", "dark yellow": "b45309 92400e 78350f",
    "light green": "d1fae5 a7f3d0 6ee7b7", "green": "34d399 10b981 059669", "dark green": "047857 065f46 064e3b",
    "light blue": "dbeafe bfdbfe 93c5fd", "blue": "60a5fa 3b82f6 2563eb", "dark blue": "1d4ed8 1e40af 1e3a8a",
    "light indigo": "e0e7ff c7d2fe a5b4fc", "indigo": "818cf8 6366f1 4f46e5", "dark indigo": "4338ca 3730a3 312e81",
    "light purple": "ede9fe ddd6fe c4b5fd", "purple": "a78bfa 8b5cf6 7c3aed", "dark purple": "6d28d9 5b21b6 4c1d95",
    "light pink": "fce7f3 fbcfe8 f9a8d4", "pink": "f472b6 ec4899 db2777", "dark pink": "be185d 9d174d 831843",
}
KINDS = {"header": "header", "nav": "navigation bar", "footer": "footer", "aside": "sidebar", "form": "form",
         "section": "section", "article": "section", "main": "main part", "h1": "main heading", "h2": "heading",
         "h3": "heading", "h4": "heading", "a": "link", "button": "button", "img": "picture", "svg": "picture",
         "video": "picture", "input": "field", "textarea": "field", "select": "field", "li": "list item",
         "hr": "line", "label": "label"}
LANDMARKS = ("header", "nav", "footer", "main", "aside", "form")


def page_reply(agent, reference):
    """The scripted human's reply to a page: the two largest differences, one per line."""
    return in_words(compare_pages(agent, reference)[:2])


def in_words(differences):
    """What the scripted human says about these Differences, in 1000 characters at most."""
    return "\n".join(difference.sentence() for difference in differences)[:1000] or NO_DIFFERENCE


class Difference(NamedTuple):
    """One way in which the agent's page differs from the reference."""

    subject: str  # `button "Buy"`, "header", "page's background"; "" for the page as a whole
    aspect: str  # "page", or a key of CLAUSES
    want: str = ""
    have: str = ""

    def sentence(self):
        if self.aspect == "page":
            return self.want
        clause = CLAUSES[self.aspect]
        if self.want == "transparent":
            clause = "should have no background colour"
        elif self.have == "transparent":
            clause = "should be {want}"
        return f"The {self.subject} {clause.format(want=self.want, have=self.have)}."


def choices_right(choices, agent, reference):
    """{name: whether the agent's page agrees with the reference} for the hidden choices of a page.

    choices: {name: (aspects, a pattern of subjects)}: the differences that a wrong choice causes.
    """
    differences = compare_pages(agent, reference)
    return {name: not any(is_about(difference, choice) for difference in differences)
            for name, choice in choices.items()}


def is_about(difference, choice):
    """Whether a difference shows that a choice (aspects, a pattern of subjects) is wrong."""
    if difference.aspect == "page":  # there is nothing to look at
        return True
    aspects, subject = choice
    return difference.aspect in (*aspects, "missing") and bool(re.fullmatch(subject, difference.subject))


def compare_pages(agent, reference):
    """Two layouts (Renderer.layout) -> how the agent's page differs from the reference: Differences, largest first.

    The weight of a difference is about the share of the reference page that it affects. The same two layouts always
    give the same list, and equal layouts give an empty one.
    """
    if agent is None:
        return [Difference("", "page", "Your page could not be shown.")]
    if not agent["elements"] and reference["elements"]:
        return [Difference("", "page", "Your page is empty.")]
    page_area = max(1, reference["height"] * reference["width"])
    agent_elements, reference_elements = (elements_of(layout, page_area) for layout in (agent, reference))
    match_elements(agent_elements, reference_elements)
    pairs = [(r, r.twin) for r in reference_elements if r.twin]
    ranked = []
    for weight, order, *fields in itertools.chain(
            missing_and_extra(agent_elements, reference_elements), looks(pairs, agent, reference),
            styles(pairs), arrangement(pairs)):
        difference = Difference(*fields)
        ranked.append((-round(weight, 6), order, difference.sentence(), difference))
    ranked.sort()
    return list({sentence: difference for _, _, sentence, difference in ranked}.values())  # no sentence twice


# Each of the next four functions yields (weight, order in the page, subject, aspect, want, have). r is an element of
# the reference page, and a is its twin in the agent's page. looks() and styles() use a's name, which the agent knows.

def missing_and_extra(agent_elements, reference_elements):
    """Elements that only one page has."""
    for r in alone(reference_elements):
        previous = next((e for e in reversed(reference_elements[:r.order]) if e.twin and e != r.parent), None)
        want = f"after the {previous.name}" if previous else "at the top"
        if r.background:
            want += f". It is {r.fill}"
        yield 0.05 + 1.5 * r.share, r.order, r.name, "missing", want
    for a in alone(agent_elements):
        yield 0.03 + 0.5 * a.share, len(reference_elements) + a.order, a.name, "extra"


def alone(elements):
    """The elements without a twin, except those inside another such element."""
    return [e for e in elements if not e.twin and (not e.parent or e.parent.twin)]


def looks(pairs, agent, reference):
    """Colours, words, and the sizes of elements without words."""
    have, want = colour_name(agent["background"]), colour_name(reference["background"])
    if have != want:
        distance = colour_distance(agent["background"], reference["background"])
        yield 0.3 + 0.3 * distance, -1, "page's background", "colour", want, have
    for r, a in pairs:
        if a.fill != r.fill:
            distance = colour_distance(a.background or agent["background"], r.background or reference["background"])
            yield 0.01 + r.share * (0.4 + distance), r.order, a.name, "colour", r.fill, a.fill
        elif a.gradient != r.gradient:
            yield 0.01 + 0.3 * r.share, r.order, a.name, "gradient", "have" if r.gradient else "not have"
        if a.plain != r.plain:
            yield 0.03 + 2 * r.text_share, r.order, a.name, "words", quote(r.text, 80)
        if r.text or r.tag in ("main", "div"):
            continue
        sizes = [(r.width, a.width, "wider", "narrower")]
        if {e.twin for e in r.inside} == a.inside:  # otherwise the height follows from the contents
            sizes.append((r.height, a.height, "taller", "less tall"))
        for want, have, more, less in sizes:
            change = (max(want, have) + 8) / (min(want, have) + 8)
            if change > 1.3:
                weight = 0.01 + 0.5 * (1 - 1 / change) * r.share
                yield weight, r.order, a.name, "shape", more if want > have else less


def styles(pairs):
    """How texts are styled, and where elements are. Texts of one container with the same change share a sentence."""
    moved = []  # containers that are elsewhere, along with their contents
    shared = {}  # (container, aspect, want, have) -> [(weight, order, name)]
    for r, a in pairs:  # a container comes before its contents
        carried = any(r in container.inside for container in moved)
        if not r.text:
            narrow = max(r.width, a.width) < 0.6 * WIDTH
            if a.place != r.place and narrow and not carried:
                moved.append(r)
                yield 0.02 + r.share, r.order, a.name, "place", r.place, a.place
            continue
        changes = [(0.6, "letters", r.ink, a.ink),
                   (0.3, "bold", "be" if r.bold else "not be", "be" if a.bold else "not be")]
        ratio = max(1, r.font_size) / max(1, a.font_size)
        if max(ratio, 1 / ratio) > 1.15:
            changes.append((abs(1 - ratio), "size", "larger" if ratio > 1 else "smaller", ""))
        if not carried:
            changes.append((1.0, "place", r.place, a.place))
        for weight, aspect, want, have in changes:
            if want != have:
                entry = weight * (0.02 + r.text_share), r.order, a.name
                shared.setdefault((r.parent, aspect, want, have), []).append(entry)
    for (container, *change), entries in shared.items():
        weights, orders, names = zip(*entries)
        name = names[0]
        if len(entries) > 1:
            name = f"texts in the {container.name}" if container else "texts of the page"
        yield sum(weights), orders[0], name, *change


def arrangement(pairs):
    """The order of neighbours, and whether they are side by side."""
    latest = {}  # container -> its last element so far
    for second, b in pairs:
        first = latest.get(second.parent)
        latest[second.parent] = second
        if not first:
            continue
        a = first.twin
        weight = 0.02 + min(first.share, second.share)
        if a.order > b.order:
            yield weight, first.order, first.name, "order", second.name
        elif beside(first, second) != beside(a, b) and below(first, second) != below(a, b):
            how = "beside" if beside(first, second) else "above"
            yield weight, first.order, first.name, "layout", f"{how} the {second.name}"


class Element:
    """An element of a layout, with the elements inside it."""

    def __init__(self, measured, previous, page_area):
        vars(self).update(measured)  # tag, order, text, box, colour, ...
        self.parent = None if self.parent is None else previous[self.parent]
        self.left, self.top, self.width, self.height = self.box
        left, _, width, height = self.text_box or self.box
        self.share = min(1.0, self.width * self.height / page_area)
        self.text_share = min(1.0, width * height / page_area)
        offset = (left + width / 2) / WIDTH - 0.5  # from the centre
        self.place = "on the left" if offset < 0 else "on the right"
        if abs(offset) < 0.05:
            self.place = "in the centre"
        self.fill, self.ink = colour_name(self.background), colour_name(self.colour or "#000000")
        self.plain = " ".join(re.findall(r"[\w$%\u20ac\u00a3.]+", self.text.lower()))
        self.kind = "block" if self.tag in ("section", "article") else KINDS.get(self.tag, "block")
        self.rank = sum(not e.text and e.kind == self.kind for e in previous)  # its position among its kind
        self.twin = None  # the element of the other page that it is compared with
        self.inside = set()
        self.words = [self.text] if self.text else []
        container = self.parent
        while container:
            container.inside.add(self)
            container.words += self.words
            container = container.parent

    @functools.cached_property
    def name(self):
        """Such as `button "Buy"`, `header`, or `section "Prices"` (the first words inside it)."""
        kind = KINDS.get(self.tag, "text" if self.text else "block")
        words = self.text if self.tag in LANDMARKS else "".join(self.words[:1])
        return f"{kind} {quote(words)}" if words else kind


def elements_of(layout, page_area):
    elements = []
    for measured in layout["elements"]:
        elements.append(Element(measured, elements, page_area))
    return elements


def match_elements(agent_elements, reference_elements):
    """Set each element's twin in the other page, if it has one.

    Texts are matched first: those with equal words (best with the same tag too), then those with similar words, then
    those with the same tag. Other elements are matched within their kind, by the texts inside them.
    """
    matcher = difflib.SequenceMatcher(autojunk=False)

    def equal_words(r, a):
        if a.plain == r.plain:
            return a.tag != r.tag

    def similar_words(r, a):
        matcher.set_seqs(a.plain[:100], r.plain[:100])  # only their beginnings, because ratio() takes quadratic time
        if matcher.real_quick_ratio() > 0.6 and matcher.quick_ratio() > 0.6 and matcher.ratio() > 0.6:
            return -matcher.ratio()
        if a.tag == r.tag:  # with wrong words
            return 0

    def share_texts(r, a):
        if r.kind == a.kind:
            common = len({e.twin for e in r.inside} & a.inside)
            # Two blocks that both contain texts, but none in common, are different blocks.
            if common or not a.words or not r.words or r.tag in LANDMARKS:
                return -common / max(1, len(r.words), len(a.words)), abs(a.rank - r.rank)

    for with_text, score in (True, equal_words), (True, similar_words), (False, share_texts):
        pair(reference_elements, agent_elements, with_text, score)


def pair(reference_elements, agent_elements, with_text, score):
    """Pair up elements without a twin, lowest score(r, a) first, ties in page order. A score of None means no pair."""
    free = [[e for e in page if not e.twin and bool(e.text) == with_text]
            for page in (reference_elements, agent_elements)]
    scored = []
    for r, a in itertools.product(*free):
        value = score(r, a)
        if value is not None:
            scored.append((value, r.order, a.order, r, a))
    for *_, r, a in sorted(scored):
        if not r.twin and not a.twin:
            r.twin, a.twin = a, r


def channels(colour):
    """"#3b82f6" -> its red, green and blue, from 0 to 255."""
    return bytes.fromhex(colour[1:])


def colour_distance(a, b):
    """From 0 (equal) to 1 (black and white). Green weighs most, as it does for the eye."""
    squares = [weight * (x - y) ** 2 for weight, x, y in zip((3, 4, 2), channels(a), channels(b))]
    return (sum(squares) / 9) ** 0.5 / 255


@functools.lru_cache(maxsize=4096)
def colour_name(colour):
    """Such as "#3b82f6" -> "blue": the nearest shade, among the greys (Tailwind's are slightly blue) or the colours."""
    if colour is None:
        return "transparent"
    high, low = max(channels(colour)) / 255, min(channels(colour)) / 255
    saturation = 0 if high == low else (high - low) / (1 - abs(high + low - 1))
    grey = saturation < 0.25 or (high + low < 0.4 and saturation < 0.45)
    distances = []
    for name, shades in (GREYS if grey else COLOURS).items():
        distances += [(colour_distance(colour, f"#{shade}"), name) for shade in shades.split()]
    return min(distances)[1]


def beside(a, b):
    """Whether b begins to the right of a, at about the same height."""
    return a.left + a.width <= b.left + 1 and a.top < b.top + b.height and b.top < a.top + a.height


def below(a, b):
    """Whether b begins below a."""
    return a.top + a.height <= b.top + 1


def quote(text, most=40):
    if len(text) <= most:
        return f'"{text}"'
    return f'"{text[:most].rsplit(" ", 1)[0]} ..."'


# ------------------------------------------------------------------------------------------------ Tailwind's stylesheet

def fetch_tailwind():
    """Fetch the stylesheet once, from npm or else from the CDN that pages link to. load_stylesheet() verifies it."""
    if is_there():
        return
    npm = "npm pack tailwindcss@2.2.19 >&2 && tar xzOf tailwindcss-2.2.19.tgz package/dist/tailwind.min.css"
    with tempfile.TemporaryDirectory() as folder:
        css = subprocess.run(npm, shell=True, cwd=folder, capture_output=True).stdout
    with contextlib.suppress(OSError):
        css = css or urllib.request.urlopen(TAILWIND_LINK, timeout=60).read()
    with atomic_write(TAILWIND_FILE) as part:  # other processes may be reading it
        part.write_bytes(css)


def is_there():
    """Whether the stylesheet is in cache/, whole and unchanged."""
    return TAILWIND_FILE.exists() and hashlib.sha256(TAILWIND_FILE.read_bytes()).hexdigest() == TAILWIND_SHA256


def load_stylesheet():
    """The Stylesheet in cache/; raises a RuntimeError with the remedy if it is missing or wrong."""
    if not is_there():
        raise RuntimeError(f"Tailwind 2.2.19 is not at {TAILWIND_FILE} (no such file, or its checksum differs); run: "
                           f"python render.py --setup, with npm or {TAILWIND_LINK}; or put dist/tailwind.min.css "
                           "of the npm package tailwindcss@2.2.19 there")
    return Stylesheet(TAILWIND_FILE.read_text("utf-8"))


class Stylesheet:
    """Tailwind, cut to the rules that a page can use. This is exact: without JavaScript no class is added later."""

    def __init__(self, css):
        self.rules = []  # in order, each in its @media
        self.by_class = collections.defaultdict(list)  # class -> indices of its rules; "": of those without a class
        css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
        rule = r"[^{}]+\{(?:[^{}]+\{[^{}]*\})*[^{}]*\}"  # may contain rules: @keyframes, @media inside @media
        for block in re.finditer(r"(@media[^{}]+)\{((?:" + rule + r")*)\}|" + rule, css):
            media, inside = block.groups()
            for text in re.findall(rule, inside or block[0]):
                classes = re.findall(r"\.((?:\\[0-9a-f]{1,6} ?|\\.|[\w-])+)", text.split("{")[0])
                for name in set(map(unescape_css, classes)) or {""}:
                    self.by_class[name].append(len(self.rules))
                self.rules.append(f"{media}{{{text}}}" if media else text)

    @functools.lru_cache(maxsize=8)  # a page may ask for it a thousand times, and the other browsers wait meanwhile
    def for_page(self, page):
        # Every word of the page counts as a class; that only keeps too many rules. Words are in lower case, because
        # quirks mode ignores the case of class names. Numeric references are cut to seven digits, because Python
        # refuses to parse thousands of digits.
        page = re.sub(r"&#0*(\d{0,7})\d*", r"&#\1", page)
        words = {"", *re.findall(r"[^\s\"'<>=]+", html_entities.unescape(page).lower())}
        wanted = set().union(*(self.by_class.get(word, []) for word in words))
        return "".join(self.rules[n] for n in sorted(wanted))


def unescape_css(name):
    """A class name in CSS (`md\\:w-1\\/2`, `\\32xl`) -> in HTML (`md:w-1/2`, `2xl`)."""
    return re.sub(r"\\([0-9a-f]{1,6}) ?|\\(.)", lambda m: chr(int(m[1], 16)) if m[1] else m[2], name)


# ------------------------------------------------------------------------------------------------ isolating the browser

def answer_request(address, stylesheet, page):
    """The answer to a page's request: (content type, body), or None to refuse it."""
    if len(address) > 2000:  # the pattern below takes quadratic time and blocks the event loop
        return None
    if re.fullmatch(r"https://(cdn\.jsdelivr\.net|unpkg\.com|cdnjs\.cloudflare\.com)/"
                    r"\S*tailwind(css)?\S*/tailwind(\.min)?\.css", address):
        return "text/css", stylesheet.for_page(page)
    size = re.fullmatch(r"https://picsum\.photos/id/48/(\d{1,4})(?:/(\d{1,4}))?/?", rewrite_images(address))
    if size is None:
        return None
    return "image/svg+xml", placeholder_picture(size[1], size[2] or size[1])


def placeholder_picture(width, height):
    """The stand-in for picsum's picture 48: a drawn desk in browns and greys, the same at every size."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 16 9" '
        'preserveAspectRatio="none">'
        '<rect width="16" height="9" fill="#8d99a6"/><rect y="5.5" width="16" height="3.5" fill="#6b4f3a"/>'
        '<rect x="4" y="1.5" width="7" height="4.5" fill="#2f3640"/>'
        '<rect x="4.3" y="1.8" width="6.4" height="3.8" fill="#c9d6df"/>'
        '<rect x="3.2" y="6" width="8.6" height=".6" fill="#4a5560"/>'
        '<circle cx="13.2" cy="6.2" r=".9" fill="#e0d6c8"/></svg>')


def find_chromium():
    """CHROMIUM_PATH, else a Chromium on PATH (headless shell first, it is the fastest), else Playwright's own."""
    names = ["chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome"]
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache/ms-playwright")
    names += folder.glob("chromium_headless_shell-*/*/*headless?shell")
    if "CHROMIUM_PATH" in os.environ:
        names = [os.environ["CHROMIUM_PATH"]]
    for name in names:
        if executable := shutil.which(name):
            return executable
    raise RuntimeError(f"found no Chromium ({', '.join(map(str, names))}): apt-get install chromium-headless-shell, or "
                       "playwright install chromium, or set CHROMIUM_PATH")


# Rendering must not depend on the clock, the display or the machine's settings, and nothing may phone home. Playwright
# adds flags of its own, such as --hide-scrollbars.
BROWSER_FLAGS = [
    "--disable-gpu", "--force-color-profile=srgb", "--force-device-scale-factor=1",
    "--font-render-hinting=none", "--disable-font-subpixel-positioning", "--disable-lcd-text",
    "--disable-checker-imaging", "--disable-image-animation-resync", "--disable-threaded-animation",
    "--disable-threaded-scrolling", "--disable-new-content-rendering-timeout", "--disable-partial-raster",
    "--disable-skia-runtime-opts",
    "--blink-settings=imagesLazyLoadingEnabled=false,imageAnimationPolicy=2",  # no lazy and no moving pictures
    "--disable-remote-fonts", "--no-pings", "--dns-prefetch-disable",
    "--proxy-server=http://127.0.0.1:9", "--proxy-bypass-list=<-loopback>", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-features=Translate,BackForwardCache,Prerender2,SpeculationRulesPrefetchProxy,WebRtc,"
    "InterestFeedContentSuggestions",
]

FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<dir>/usr/share/fonts</dir><dir>/usr/local/share/fonts</dir><dir>/System/Library/Fonts</dir><cachedir>CACHE</cachedir>
<selectfont><rejectfont><pattern><patelt name="scalable"><bool>true</bool></patelt></pattern>
<pattern><patelt name="scalable"><bool>false</bool></patelt></pattern></rejectfont><acceptfont>
<pattern><patelt name="family"><string>Liberation Sans</string></patelt></pattern>
<pattern><patelt name="family"><string>Liberation Serif</string></patelt></pattern>
<pattern><patelt name="family"><string>Liberation Mono</string></patelt></pattern>
<pattern><patelt name="family"><string>DejaVu Sans</string></patelt></pattern>
<pattern><patelt name="family"><string>DejaVu Serif</string></patelt></pattern>
<pattern><patelt name="family"><string>DejaVu Sans Mono</string></patelt></pattern></acceptfont></selectfont>
<alias binding="same"><family>system-ui</family><prefer><family>Liberation Sans</family><family>DejaVu Sans</family>
</prefer></alias>
<alias binding="same"><family>sans-serif</family><prefer><family>Liberation Sans</family><family>DejaVu Sans</family>
</prefer></alias>
<alias binding="same"><family>serif</family><prefer><family>Liberation Serif</family><family>DejaVu Serif</family>
</prefer></alias>
<alias binding="same"><family>monospace</family><prefer><family>Liberation Mono</family>
<family>DejaVu Sans Mono</family></prefer></alias></fontconfig>"""


def pinned_fonts(folder):
    """Environment variables that restrict the browser to FONTS, so that no other font changes a page.

    If none of FONTS is installed, the system's fonts are used.
    """
    installed = subprocess.run("fc-list : family", shell=True, capture_output=True, text=True).stdout
    if not re.search("Liberation Sans|DejaVu Sans", installed):
        return {}
    path = folder / "fonts.conf"
    path.write_text(FONTS.replace("CACHE", str(folder / "fontcache")))
    return {"FONTCONFIG_FILE": str(path)}


def launch_modes():
    """[(isolation, prefix of the command line, whether Chromium's own sandbox is on)], the safest first."""
    as_nobody, namespace = "", "unshare --user --map-current-user --net --"
    if os.geteuid() == 0:  # the browser never runs as root
        as_nobody = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --no-new-privs --"
        namespace = f"unshare --net -- {as_nobody}"
    return [("network namespace", namespace, True), ("network namespace", namespace, False),
            ("dead proxy", as_nobody, True), ("dead proxy", as_nobody, False)]


# Runs inside the loaded page: measures its height and, if wanted, its layout. The page's own scripts never ran, but its
# names can hide built-in ones of the document and of forms (<form name=querySelectorAll>). So we take those from their
# prototypes.
PREPARE = r"""
want_layout => {
  const all = selector => Document.prototype.querySelectorAll.call(document, selector);
  const create = tag => Document.prototype.createElement.call(document, tag);
  const get = (node, name) => Reflect.get(Element.prototype, name, node);
  const [root, body] = ['documentElement', 'body'].map(name => Reflect.get(Document.prototype, name, document));
  for (const old of all('marquee')) {                       // turn a marquee into a plain block
    const still = create('div');
    while (old.firstChild) still.appendChild(old.firstChild);
    old.replaceWith(still);
  }
  // A progress bar without a value moves by its own timer.
  for (const bar of all('progress:indeterminate')) bar.setAttribute('value', 0);
  // Without scripts a player always shows controls, with a spinner while its film loads.
  if (all('video, audio').length) {
    const style = create('style');
    style.textContent = '*::-webkit-media-controls {display: none !important}';
    root.appendChild(style);
  }
  // Show an animation at its end if it has one, otherwise at its start.
  for (const animation of Document.prototype.getAnimations.call(document)) {
    const ends = () => isFinite(animation.effect.getComputedTiming().endTime);
    try { ends() ? animation.finish() : animation.cancel(); } catch { animation.cancel(); }
  }
  for (const svg of all('svg')) {
    try {
      svg.pauseAnimations();
      svg.setCurrentTime(0);
    } catch {}
  }
  const page = {height: Math.max(root.scrollHeight, body ? body.scrollHeight : 0)};
  if (!want_layout) return page;
  const pixel = create('canvas').getContext('2d', {willReadFrequently: true});
  const hex = colour => {                                    // "rgb(1, 2, 3)" -> "#010203"; transparent -> null
    let channels = (colour.match(/[\d.]+/g) || []).map(Number);
    if (!colour.startsWith('rgb')) {                         // oklch(...), color(srgb ...): as drawn
      pixel.clearRect(0, 0, 1, 1);
      pixel.fillStyle = colour;
      pixel.fillRect(0, 0, 1, 1);
      channels = [...pixel.getImageData(0, 0, 1, 1).data];
      channels[3] /= 255;
    }
    if (channels[3] < 0.1) return null;
    return '#' + channels.slice(0, 3).map(v => Math.round(v).toString(16).padStart(2, '0')).join('');
  };
  const rounded = r => [r.left + scrollX, r.top + scrollY, r.width, r.height].map(Math.round);
  const drawn = new Set(['IMG', 'SVG', 'VIDEO', 'CANVAS', 'INPUT', 'SELECT', 'TEXTAREA', 'BUTTON', 'HR', 'IFRAME']);
  const landmarks = new Set(['HEADER', 'NAV', 'MAIN', 'SECTION', 'ARTICLE', 'ASIDE', 'FOOTER', 'FORM']);
  const index = new Map(), elements = [];
  let background = null;
  for (const e of [root, body]) if (e) background = hex(getComputedStyle(e).backgroundColor) || background;
  for (const e of all('body *')) {
    if (elements.length >= 2000) break;
    let up = get(e, 'parentNode');
    while (up && !index.has(up)) up = get(up, 'parentNode');
    const tag = get(e, 'tagName').toUpperCase(), style = getComputedStyle(e);
    const box = Element.prototype.getBoundingClientRect.call(e);
    if (style.visibility !== 'visible' || Number(style.opacity) < 0.05 || box.width < 1 || box.height < 1) continue;
    if (tag !== 'SVG' && e instanceof SVGElement) continue;   // an SVG counts as one element
    let text = '', ink = null;
    for (const child of get(e, 'childNodes')) {
      const words = child instanceof Text ? child.data.trim() : '';
      if (!words) continue;
      text += (text ? ' ' : '') + words;
      const range = new Range();
      range.selectNodeContents(child);
      const r = range.getBoundingClientRect(), so_far = ink || r;
      ink = {left: Math.min(so_far.left, r.left), top: Math.min(so_far.top, r.top),
             right: Math.max(so_far.right, r.right), bottom: Math.max(so_far.bottom, r.bottom)};
    }
    if (!text && ['INPUT', 'TEXTAREA'].includes(tag))
      text = e.getAttribute('placeholder') || e.getAttribute('value') || '';
    const border = ['Top', 'Bottom', 'Left'].some(side => parseFloat(style[`border${side}Width`]) > 0);
    const fill = hex(style.backgroundColor), picture = style.backgroundImage !== 'none';
    if (!text && !fill && !picture && !border && !drawn.has(tag) && !landmarks.has(tag)) continue;
    index.set(e, elements.length);
    const inked = ink && {left: ink.left, top: ink.top, width: ink.right - ink.left, height: ink.bottom - ink.top};
    elements.push({
      tag: tag.toLowerCase(), order: elements.length, parent: up ? index.get(up) : null,
      text: text.replace(/\s+/g, ' ').slice(0, 300), box: rounded(box), text_box: inked ? rounded(inked) : null,
      colour: hex(style.color), background: fill, gradient: picture,
      font_size: Math.round(parseFloat(style.fontSize)), bold: Number(style.fontWeight) >= 600});
  }
  return {...page, width: innerWidth, background: background || '#ffffff', elements};
}
"""


# ------------------------------------------------------------------------------------------------ command line

def parse_args():
    parser = argparse.ArgumentParser(description="Set up rendering in an isolated Chromium.")
    parser.add_argument("--setup", action="store_true", required=True,
                        help="fetch Tailwind's stylesheet into cache/, and check that Chromium starts")
    return parser.parse_args()


def main():
    parse_args()
    try:
        fetch_tailwind()
        with Renderer(browsers=1) as renderer:
            print(f"Tailwind 2.2.19 is at {TAILWIND_FILE}, checksum verified.")
            print(f"Chromium {renderer.version} starts ({renderer.executable}), isolation: {renderer.isolation}.")
    except (RuntimeError, OSError) as error:
        die(first_line(error))


if __name__ == "__main__":
    main()
