"""Render untrusted HTML, and measure how similar two pages look.

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

page_words.py says in words how two layouts differ. render.js is what runs inside a loaded page.
"""

import argparse
import asyncio
import base64
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import html as html_entities
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.request
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from records import atomic_write, die, first_line, run_script

PREPARE = Path(__file__).resolve().with_name("render.js")
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


# ---- Pages as text

DOCTYPE = r"(?i)(?:<!doctype[^>]{0,200}>\s{0,200}(?:<!--[^>]{0,500}-->\s{0,200})?)?"  # bounded: linear time
MARK = re.compile(r"(?i)(?P<comment><!--)|(?P<fence>(?:\A|\n)[ \t]{0,9}```)|<(?P<closing>/?)(?P<name>[a-z][a-z0-9]*)"
                  r"""(?:\s(?:"[^"]*"|'[^']*'|[^"'<>])*+)?+/?>""")
OPAQUE = {"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes", "template", "pre", "code"}
OPTIONAL = {"html", "head", "body", "p", "li", "dt", "dd", "tr", "td", "th", "tbody", "thead", "option"}  # ends
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"}
BLOCKS = set("""head style link meta title div header nav main section article aside footer form table ul ol dl h1 h2 h3
    h4 h5 h6 p img figure button svg center""".split())


def extract_page(text):
    """The page in an agent's text, or None.

    It is the last <html> ... </html>. Documents inside comments, attributes, scripts and the like belong to the page
    around them. A page that was cut off ends where its fence, its body or its last tag ends. An <html> that a tag
    follows goes before one that may be a word in a sentence. Without an <html> it is the last <body> ... </body> with
    the <head> before it, or else a fragment: what a fence holds, or what begins and ends with tags on lines of its own.
    """
    text = text or ""
    html = DOCTYPE + r"<html\b"
    with_tag = html + r"(?=[^<>]{0,200}>\s{0,200}<(?!/?html\b))"    # in a sentence no tag follows
    page = None
    for mark in list(re.finditer(with_tag, text)) or re.finditer(html, text):
        if page is None or mark.start() >= page.stop:
            page = slice(mark.start(), end_of_page(text, mark))
    around = body_of(text) or fragment_of(text)
    if around and page and around.start < page.start < around.stop:    # is its <html> hidden in a script or the like?
        seen = (mark for mark in marks_of(text, around.start) if page.start <= mark.start() < around.stop)
        page = page if any((mark["name"] or "").lower() == "html" for mark in seen) else around
    page = page or around
    return page and text[page].rstrip()


def marks_of(text, position=0):
    """Yield the matches of MARK that a browser sees from here on: none in comments, attributes or OPAQUE elements."""
    endless = set()    # what nothing ends any more: without it a page of unclosed comments takes quadratic time
    while mark := MARK.search(text, position):
        position = mark.end()
        end = "-->" if mark["comment"] else f"</{mark['name'] or ''}".lower()
        if mark["comment"] or not mark["closing"] and (mark["name"] or "").lower() in OPAQUE:
            found = None if end in endless else re.compile(f"(?i){end}").search(text, position)
            if found:
                position = found.end() if mark["comment"] else found.start()
            else:
                endless.add(end)
        if not mark["comment"]:
            yield mark


def end_of_page(text, first):
    """Where the page ends that begins with the match `first` of an <html>."""
    fenced = re.search(r"```\w*\s{0,9}\Z", text[max(0, first.start() - 40):first.start()])
    body, opened, last = None, collections.Counter(), first
    for mark in marks_of(text, first.end() - len("<html")):
        name, closing = (mark["name"] or "").lower(), mark["closing"]
        if mark["fence"] and fenced or name == "html" and not closing and mark.start() > first.end():
            return body or mark.start()    # the fence ends, or a second page begins
        if name == "html" and closing:
            return mark.end()
        if name == "body" and closing:
            body = body or mark.end()
        if name and name not in OPTIONAL | VOID:
            opened[name] += -1 if closing else 1
        last = mark if name else last
    prose = last is not first and last["closing"] and max(opened.values(), default=0) <= 0 and \
        re.match(r"[ \t]*\n", text[last.end():])
    return body or (last.end() if prose else len(text))


def body_of(text):
    """Where the last <body> ... </body> is, with the doctype and the <head> before it. A lone <body> may be prose."""
    page = start = head = None
    for mark in marks_of(text):
        name, closing = (mark["name"] or "").lower(), mark["closing"]
        if name == "body" and closing and start is not None:
            page, start = slice(start, mark.end()), None
        elif name in ("head", "body") and not closing:
            before = text[max(0, mark.start() - 900):mark.start()]
            begins = mark.start() - ("<!" in before and len(re.search(DOCTYPE + r"\Z", before)[0]))
            start = (begins if head is None else head) if name == "body" else start
            head = begins if name == "head" else None
    return page


def fragment_of(text):
    """Where HTML without <html> and <body> is: the last fenced block that begins with a tag, or lines of tags."""
    fenced = None
    for fenced in re.finditer(r"(?si)```(?:html)?[ \t]*\n\s*(<[a-z!].*?)(?:\n[ \t]*```|\Z)", text):
        pass
    if fenced:
        return slice(*fenced.span(1))
    marks = [mark for mark in marks_of(text) if mark["name"]]
    closed = {mark["name"].lower() for mark in marks if mark["closing"]}
    for first in marks:
        alone = not text[text.rfind("\n", 0, first.start()) + 1:first.start()].strip()    # nothing else before it
        name = first["name"].lower()
        if alone and not first["closing"] and name in BLOCKS and (name in closed | VOID) and closed:
            ends = [mark.end() for mark in marks if mark.start() > first.start() and mark["closing"]
                    and re.match(r"[ \t]*(\n|\Z)", text[mark.end():mark.end() + 200])]
            return slice(first.start(), ends[-1]) if ends else None
    return None


def rewrite_images(page):
    """source.unsplash.com/random/WxH/?... (gone since 2024) -> the one picture that pages may show, at that size."""
    sized = r"(?:random|featured)/?(\d{1,4})x(\d{1,4})/?(?:\?[^\s\"')>]*)?"
    return re.sub(rf"https?://source\.unsplash\.com/(?:{sized}|[^\s\"')>]*)",
                  lambda match: f"https://picsum.photos/id/48/{match[1] or 640}/{match[2] or 480}", page)


# ---- Rendering

@dataclasses.dataclass
class Picture:
    """A rendered page. status: "ok", "needs scripts" (it looks as it does without them), or, without a png, "timeout",
    "too large" or "error: ..."."""

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
        self.prepare = "".join(line for line in open(PREPARE, encoding="utf-8") if not line.startswith("//"))
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

    def render(self, page, layout=True):
        """HTML -> Picture. Never raises, whatever the page does; `status` says what went wrong."""
        return self.submit(page, layout).result()

    def layout(self, page):
        """HTML -> {"width", "height", "background", "elements": [{tag, box, text, ...}]}, or None on failure."""
        return self.submit(page, layout=True, picture=False).result().layout

    def submit(self, page, layout=True, picture=True):
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
        # Stops animations in frames and shadow trees too, which render.js does not reach.
        await slot.cdp.send("Animation.setPlaybackRate", {"playbackRate": 0})
        await slot.page.goto(PAGE_ADDRESS, wait_until="load", timeout=0)  # _render has the time limit
        answer = await slot.cdp.send("Runtime.evaluate", {
            "expression": f"({self.prepare})({json.dumps(layout)})", "returnByValue": True})
        measured = answer["result"]["value"]  # raises if the script failed on this page
        height = min(max(measured["height"], HEIGHT), MAX_HEIGHT)
        png = b""
        if picture:
            if "marquee" in page.lower():  # in frames and shadow trees it moves to its start with the first frame
                await self._screenshot(slot, 1, 1)
            png = await self._screenshot(slot, WIDTH, height)
        status = "needs scripts" if measured["scripts"] else "ok"
        return Picture(status, png, height, measured if layout else None)

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
                page = without_false_integrity(slot.html)
                await route.fulfill(headers=PAGE_HEADERS, body=page.encode("utf-8", "replace"))
            elif answer := answer_request(request.url, self.stylesheet, slot.html):
                headers = {"Content-Type": answer[0], "Access-Control-Allow-Origin": "*"}    # as these hosts answer
                await route.fulfill(headers=headers, body=answer[1])
            else:
                await route.abort("aborted" if navigates else "blockedbyclient")


# ---- Similarity

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


HASHED = 4096    # entries of each hashed part of the layout embedding
INK, EDGES = 0.15, 0.05    # weights of its parts: ink on a grid, edges, and the hashed ones
HASHED_PARTS = {"words": 0.1, "by words": 0.35, "by kind": 0.2}


def layout_embedding(picture, view):
    """A Picture -> a unit vector, without learned weights: a stand-in for CLIP, which sees shapes, colours and words.

    The vector's parts have unit length, so the cosine of two pages is the weighted mean of the parts' cosines. Three
    parts come from the picture (the whole page or its centre square, scaled to 128 x 128): ink (white minus colour,
    three channels) on grids of 4 and 8 cells a side, which say which colour is where, and edges (differences of
    brightness, across and down) on a grid of 8, which say where texts and borders are. White counts as zero, so two
    pages are not similar just because both are mostly white. Three parts come from the layout, hashed: the texts that
    are seen; and how each text looks (place, size, colours), by its words and by its kind. So a wrong word counts,
    however small it is. A picture without a layout has the first three only.
    """
    rgb, left, top, side = picture.rgb, 0, 0, None
    if view == "centre":
        height, width, _ = rgb.shape
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        rgb = rgb[top:top + side, left:left + side]
    image = Image.fromarray(rgb).resize((128, 128), Image.Resampling.BOX)
    ink = 1.0 - np.asarray(image, np.float32) / 255.0  # (128, 128, 3)
    grey = ink.mean(axis=-1)
    across, down = np.diff(grey, axis=1, prepend=grey[:, :1]), np.diff(grey, axis=0, prepend=grey[:1])
    edges = np.abs(np.stack([across, down], axis=-1))  # (128, 128, 2)
    parts = [(INK, pool(ink, 4)), (INK, pool(ink, 8)), (EDGES, pool(edges, 8))]
    if picture.layout:
        from page_words import features
        hashed = {part: np.zeros(HASHED) for part in HASHED_PARTS}
        for part, name, value in features(picture.layout, side and (left, top, left + side, top + side)):
            code = zlib.crc32(name.encode())
            hashed[part][code % HASHED] += value if code >> 31 else -value
        parts += [(HASHED_PARTS[part], unit(vector)) for part, vector in hashed.items()]
    return unit(np.concatenate([weight ** 0.5 * vector for weight, vector in parts]))


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
            return layout_embedding(picture, view)
        image = Image.fromarray(picture.rgb)
        if view == "page":  # at the encoder's own size its processor crops nothing
            image = image.resize((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
        with torch.inference_mode():
            features = model.get_image_features(**processor(images=image, return_tensors="pt").to(device))
        features = getattr(features, "pooler_output", features)
        return unit(features[0].float().cpu().numpy())

    embed.name = name
    return embed


# ---- Tailwind's stylesheet

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
        self.css, self.rules = css, []  # rules: in order, each in its @media
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


# ---- Isolating the browser

def without_false_integrity(page):
    """The page, in which a link to another file of Tailwind has no `integrity`: what it is served has another hash.

    A link to this version keeps it, and the browser checks it.
    """
    def tidy(link):
        if "tailwind" in link[0].lower() and not re.search(r"2\.2\.19/\S*tailwind\.min\.css", link[0]):
            return re.sub(r"""(?i)\sintegrity\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]*)""", "", link[0])
        return link[0]
    return re.sub(r"(?i)<link\b[^<>]*>", tidy, page)


def answer_request(address, stylesheet, page):
    """The answer to a page's request: (content type, body), or None to refuse it."""
    if len(address) > 2000:  # the pattern below takes quadratic time and blocks the event loop
        return None
    if re.fullmatch(r"https://(cdn\.jsdelivr\.net|unpkg\.com|cdnjs\.cloudflare\.com)/"
                    r"\S*tailwind(css)?\S*/tailwind(\.min)?\.css", address):
        whole = "integrity" in page.lower()    # a hash is that of the whole file
        return "text/css", stylesheet.css if whole else stylesheet.for_page(page)
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


# ---- The command line

def parse_args():
    parser = argparse.ArgumentParser(description="Set up rendering in an isolated Chromium.", allow_abbrev=False)
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
    run_script(main)
