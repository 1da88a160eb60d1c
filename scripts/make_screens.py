"""Take the pictures of the documentation anew: python scripts/make_screens.py [NAME…]

Nothing in them is drawn: the terminal is a pseudo-terminal in which real commands run, the viewer is `hitherto serve`
in Debian's chromium. Both show the conversations of tests/support/scenes.py, which nobody has held. It needs chromium.
"""

import fcntl
import html
import os
import pty
import re
import struct
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

import hitherto  # noqa: E402  # the project's own folder comes first
from tests.support import scenes  # noqa: E402
from tests.support.browser import Browser, Page, find_browser  # noqa: E402
from tests.support.serving import served  # noqa: E402

COLUMNS = 92
COMMANDS = ("list", "search ruff", "log --graph {talk}")
COLOURS = {
    "1": "font-weight:600", "2": "opacity:.6", "4": "text-decoration:underline", "30": "color:#555",
    "31": "color:#ff7b72", "32": "color:#7ee787", "33": "color:#f2cc60", "34": "color:#79c0ff", "35": "color:#d2a8ff",
    "36": "color:#76e3ea",
}  # fmt: skip
STYLE = """
body { margin: 0; background: #10141a; color: #d7dde5; font: 15px/1.45 "DejaVu Sans Mono", monospace; }
pre { margin: 0; padding: 22px 26px; width: max-content; }
b { color: #7ee787; font-weight: 400; }
"""


def in_a_terminal(command: list[str], environment: dict[str, str]) -> str:
    """What a command prints on a terminal, colours included."""
    child, terminal = pty.fork()
    if child == 0:
        os.execve(command[0], command, environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    said = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            piece = b""
        if not piece:
            break
        said += piece
    os.close(terminal)
    os.waitpid(child, 0)
    return said.decode().replace("\r\n", "\n")


def as_html(said: str) -> str:
    """Text with the colours that a terminal would give it."""
    parts = re.split(r"\x1b\[([\d;]*)m", said)
    found = [html.escape(parts[0])]
    for codes, text in zip(parts[1::2], parts[2::2], strict=True):
        style = ";".join(COLOURS[code.lstrip("0")] for code in codes.split(";") if code.lstrip("0") in COLOURS)
        found.append(f'<span style="{style}">{html.escape(text)}</span>')
    return "".join(found)


def terminal(browser: Browser, store: Path, picture: Path) -> None:
    environment = {
        "HOME": str(store.parent), "HITHERTO_STORE": str(store), "TERM": "xterm-256color", "PATH": os.environ["PATH"],
        "COLUMNS": str(COLUMNS), "PAGER": "cat", "TZ": "UTC", "LANG": "C.UTF-8",
    }  # fmt: skip
    program = str(Path(sys.executable).parent / "hitherto")
    parts = []
    for command in (command.format(talk=newest(store)) for command in COMMANDS):
        said = in_a_terminal([program, *command.split()], environment)
        parts.append(f"<b>$</b> hitherto {html.escape(command)}\n{as_html(said).rstrip()}")
    page_file = store.with_suffix(".html")
    page_file.write_text(f"<meta charset=utf-8><style>{STYLE}</style><pre>" + "\n\n".join(parts) + "</pre>", "utf-8")
    with browser.page(width=900, height=600) as page:
        page.open(page_file.as_uri())
        width, height = page.run(
            "[...Object.values(document.querySelector('pre').getBoundingClientRect().toJSON())].slice(2, 4)"
        )
        page.send(
            "Emulation.setDeviceMetricsOverride",
            width=round(width),
            height=round(height),
            deviceScaleFactor=1,
            mobile=False,
        )
        page.screenshot(picture)


def newest(store: Path) -> str:
    """The id of the conversation that was begun last, as a list shows it."""
    with hitherto.open(store) as opened:
        return max(opened.conversations().items, key=lambda info: info.created_at).id[:8]


def viewer(browser: Browser, store: Path, picture: Path) -> None:
    """The conversation of a coding agent, with the map of its branches."""
    with hitherto.open(store) as opened, served(opened) as address, browser.page(width=1280, height=860) as page:
        page.open(address.door)
        page.open(f"{address.address}/c/{opened.conversation(newest(store)).id}")
        page.until("[...document.querySelectorAll('#side .holder')].every((part) => part.children.length)")
        wait_for_quiet(page)
        page.screenshot(picture)


def wait_for_quiet(page: Page) -> None:
    """Fonts and pictures are there, and two frames have been drawn."""
    page.until("document.readyState === 'complete' && [...document.images].every((image) => image.complete)")
    two_frames = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    page.run(f"document.fonts.ready.then(() => {two_frames})")


PICTURES: dict[str, Callable[[Browser, Path, Path], None]] = {"terminal": terminal, "viewer": viewer}


def main(names: list[str]) -> None:
    path = find_browser()
    if path is None:
        sys.exit("make_screens: there is no chromium")
    browser = Browser(path)
    try:
        with tempfile.TemporaryDirectory(prefix="screens-") as folder:
            store = Path(folder) / "chats.db"
            with hitherto.open(store) as opened:
                scenes.long(opened, 200)
                scenes.forked(opened)
                scenes.coding(opened)
            for name in names or PICTURES:
                PICTURES[name](browser, store, DOCS / f"{name}.png")
                print(f"docs/{name}.png")
    finally:
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
