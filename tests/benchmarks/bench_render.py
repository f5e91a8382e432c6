"""How many pages a minute: this renderer beside a browser launch for each page and beside a command-line screenshot \
for each.

All in one run on one machine, page after page of the same set (1280 x about 1700 pixels, Tailwind, a picture, text), so
that the ratios mean something where the numbers depend on the machine. With --memory also whether memory stays flat.

  python tests/benchmarks/bench_render.py                    # about a minute
  python tests/benchmarks/bench_render.py --memory 2000      # and 2,000 pages while watching memory
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import render  # noqa: E402


def a_page(number):
    """A page of about 1700 pixels, each with its own words and colours."""
    rng = random.Random(number)
    hue = lambda: rng.choice(["red", "green", "blue", "indigo", "purple", "pink", "yellow"])
    words = lambda n: " ".join(rng.choice("amber birch cedar delta ember fern grove hazel iris jade kelp lotus".split())
                               for _ in range(n))
    parts = "".join(f'<section class="p-8 m-4 bg-{hue()}-100 rounded-lg shadow-lg">'
                    f'<h2 class="text-2xl font-bold">{words(3)}</h2>'
                    f'<p class="text-gray-700">{words(40)}</p></section>' for _ in range(7))
    return (f'<!DOCTYPE html><html><head><link href="{render.TAILWIND_LINK}" rel="stylesheet"></head>'
            f'<body class="bg-gray-100"><header class="bg-{hue()}-500 p-6 text-white flex justify-between">'
            f'<h1 class="text-3xl">{words(2)}</h1><nav>{words(4)}</nav></header>{parts}'
            '<img class="m-4" src="https://picsum.photos/id/48/600/300">'
            f'<footer class="bg-gray-800 text-white p-8">{words(9)}</footer></body></html>')


def family():
    """This process and every process below it."""
    below, parents = {os.getpid()}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            pass
    for _ in range(8):
        below |= {pid for pid, parent in parents.items() if parent in below}
    return below


def cpu_seconds():
    """Processor time of the family so far, with that of its ended and waited-for members:
    what does not depend on the load."""
    total = 0
    for pid in family():
        try:
            total += sum(int(ticks) for ticks in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:15])
        except OSError:
            pass
    return total / os.sysconf("SC_CLK_TCK")


def resident():
    """MiB of memory of the family, shared pages counted once (PSS)."""
    total = 0
    for pid in family():
        try:
            total += int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0])
        except (OSError, IndexError):
            pass
    return total / 1024


def one_launch_each(pages):
    from playwright.sync_api import sync_playwright

    sheet = render.load_stylesheet()
    with sync_playwright() as p:
        for page in pages:
            browser = p.chromium.launch(executable_path=render.find_chromium(), chromium_sandbox=False)
            tab = browser.new_page(viewport={"width": 1280, "height": 720}, java_script_enabled=False)

            def answer(route, request, page=page):
                if request.url == render.PAGE_ADDRESS:
                    return route.fulfill(content_type="text/html", body=page)
                kind, body = render.answer_request(request.url, sheet, page)
                route.fulfill(content_type=kind, body=body)

            tab.route("**/*", answer)
            tab.goto(render.PAGE_ADDRESS)
            tab.screenshot(full_page=True)
            browser.close()


def command_line_each(pages):
    """`chromium --screenshot` of a file beside which the whole stylesheet lies."""
    with tempfile.TemporaryDirectory() as folder:
        for page in pages:
            local = page.replace(render.TAILWIND_LINK, render.TAILWIND_FILE.as_uri())
            local = local.replace("https://picsum.photos/id/48/600/300", "picture.svg")
            (Path(folder) / "page.html").write_text(local)
            (Path(folder) / "picture.svg").write_text(render.placeholder_picture(600, 300))
            subprocess.run([render.find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                            "--window-size=1280,1700", f"--user-data-dir={folder}/profile",
                            f"--screenshot={folder}/page.png", f"{folder}/page.html"], capture_output=True, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pages", type=int, default=200,
                        help="pages through the renderer (default 200; a tenth through the others)")
    parser.add_argument("--browsers", type=int, default=2, help="browsers of the renderer (default 2)")
    parser.add_argument("--memory", type=int, default=0, help="pages to render while watching memory (default 0: none)")
    args = parser.parse_args()
    pages, few = [a_page(n) for n in range(args.pages)], [a_page(n) for n in range(max(3, args.pages // 10))]
    rows = []
    with render.Renderer(browsers=args.browsers) as renderer:
        heights = [p.height for p in renderer.render_many(pages[:20])]
        for what, count, arguments in (("picture", len(pages), {}),
                                       ("picture and layout", len(pages), {"layout": True}),
                                       ("layout alone", len(pages), {"layout": True, "picture": False})):
            started, before = time.monotonic(), cpu_seconds()
            for future in [renderer.submit(page, **arguments) for page in pages]:
                assert future.result().status == "ok"
            rows.append((f"{args.browsers} browsers kept open, {what}", 60 * count / (time.monotonic() - started),
                         1000 * (cpu_seconds() - before) / count))
        print(f"Chromium {renderer.version}, {renderer.isolation}, {os.cpu_count()} cores, "
              f"load {os.getloadavg()[0]:.1f}, pages of {min(heights)} to {max(heights)} pixels")
    for what, work in (("one browser launch per page", one_launch_each),
                       ("one command-line screenshot per page", command_line_each)):
        started, before = time.monotonic(), cpu_seconds()
        work(few)
        rows.append((what, 60 * len(few) / (time.monotonic() - started), 1000 * (cpu_seconds() - before) / len(few)))
    slowest = min(rate for _, rate, _ in rows)
    print(f"{'way':45} {'pages/min':>10} {'ratio':>7} {'CPU ms a page':>15}")
    for what, rate, cpu in rows:
        print(f"{what:45} {rate:10.0f} {rate / slowest:7.1f} {cpu:15.0f}")
    if args.memory:
        with render.Renderer(browsers=args.browsers) as renderer:
            step = max(1, args.memory // 8)
            for first in range(0, args.memory, step):
                for _ in renderer.render_many(a_page(n) for n in range(first, min(first + step, args.memory))):
                    pass
                print(f"after {min(first + step, args.memory):6} pages: {resident():7.0f} MiB "
                      "(this process, driver and browsers)")


if __name__ == "__main__":
    main()
