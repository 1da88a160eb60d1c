"""The viewer in a real browser: a conversation of ten thousand messages, read on this machine.

The server is the command itself, in a process of its own; the browser is Debian's chromium without a window, so what is
painted is painted by the processor. Each round of a first paint goes from the list to the page, as people do. The note
says when the last byte of the page was there: the rest of the time is the browser's.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hitherto
from tests.support import scenes
from tests.support.browser import Browser, Page, find_browser

from ._table import Bench, Row, at_most, percentile

_FIRST_PAINT_MS = 100.0
_FRAME_MS = 33.0
_MOST_IN_PAGE = 600
_FIND_MS = 500.0

_PAINT = "performance.getEntriesByType('paint').find((one) => one.name === 'first-contentful-paint')?.startTime"
_SENT = "performance.getEntriesByType('navigation')[0].responseEnd"
_SCROLL = """new Promise((done) => {
  const frames = []; let most = 0; let last = performance.now();
  const step = (now) => {
    frames.push(now - last); last = now;
    if (frames.length % 20 === 0)
      most = Math.max(most, document.querySelectorAll('article').length);
    const place = Number(document.querySelector('article').dataset.position);
    if (frames.length > COUNT) done([frames.slice(2), most, place]);
    else { scrollBy(0, 160); requestAnimationFrame(step); }
  };
  requestAnimationFrame(step);
})"""


def viewer(bench: Bench) -> list[Row]:
    path = find_browser()
    if path is None:
        raise SystemExit("the viewer is measured in a browser: apt-get install chromium")
    count = bench.pick(2_000, 10_000)
    place = Path(bench.place("viewer")) / "store.db"
    with hitherto.open(place, maintenance=False) as store:
        talk = scenes.long(store, count)
        middle = talk.thread()[count // 2].id
        forked = scenes.forked(store, forks=30, messages=764)
        store.maintain()
    browser = Browser(path)
    try:
        with _serving(place) as door, browser.page() as page:
            page.open(door)
            page.until("!location.search && document.querySelector('main')")
            base = door.split("/?")[0]
            paths = f"/c/{talk.id}", f"/c/{talk.id}/m/{middle}", f"/c/{forked.id}/map"
            return list(_rows(bench, page, base, *paths, count))
    finally:
        browser.close()


def _rows(bench: Bench, page: Page, base: str, whole: str, message: str, branches: str, count: int) -> Iterator[Row]:
    rounds = bench.pick(5, 15)
    name = f"{count:,} messages in the viewer"
    for what, path in (
        (f"{name}: first paint", whole),
        (f"{name}: first paint at a message in the middle", message),
        ("764 messages, 30 forks: first paint of the map", branches),
    ):
        found = [_first_paint(page, base, path) for _ in range(rounds)]
        sent = f"the page was sent at {statistics.median(last for _, last in found):.0f} ms"
        yield at_most(f"{what}, ms", [paint for paint, _ in found], _FIRST_PAINT_MS, sent)
    page.open(base + whole)
    frames, most, position = page.run(_SCROLL.replace("COUNT", str(bench.pick(300, 1_200))))
    usual = f"usually {statistics.median(frames):.1f} ms; at message {position:,} in the end"
    yield at_most(f"{name}: 95th percentile of a frame while scrolling, ms", [percentile(frames, 95)], _FRAME_MS, usual)
    yield at_most(f"{name}: most messages in the page", [most], _MOST_IN_PAGE)
    here = page.run("document.querySelector('article').dataset.id")
    asked = f"""(async () => {{
        const began = performance.now();
        await (await fetch('{base}{whole}/m/{here}/find.json?q=zebra77')).json();
        return performance.now() - began;
    }})()"""
    yield at_most(f"{name}: find, ms", [page.run(asked) for _ in range(rounds)], _FIND_MS)


def _first_paint(page: Page, base: str, path: str) -> tuple[float, float]:
    """Return when something of the page was seen, and when all of it had been sent."""
    page.open(f"{base}/?kind=chat")
    page.open(base + path)
    return float(page.until(_PAINT)), float(page.run(_SENT))


@contextmanager
def _serving(place: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "hitherto", "--store", str(place), "serve", "--no-open"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate()
