"""Makes docs/terminal.png: `.venv/bin/python -m scripts.make_terminal_picture`. It needs chromium.

Nothing in it is drawn: real commands run in a pseudo-terminal, over the conversations of `make_pictures`, and a browser
shows what they printed.
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
from datetime import UTC, datetime, timedelta
from pathlib import Path

import hitherto
from scripts.make_pictures import Teller, ledger
from tests.support import scenes
from tests.support.browser import Browser, find_browser

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "terminal.png"

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


def show(browser: Browser, store: Path, talk: str) -> None:
    """Run the commands, and take the picture of what they print."""
    environment = {
        "HOME": str(store.parent), "HITHERTO_STORE": str(store), "TERM": "xterm-256color", "PATH": os.environ["PATH"],
        "COLUMNS": str(COLUMNS), "PAGER": "cat", "TZ": "UTC", "LANG": "C.UTF-8",
    }  # fmt: skip
    program = str(Path(sys.executable).parent / "hitherto")
    parts = []
    for command in (command.format(talk=talk) for command in COMMANDS):
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
        page.screenshot(PICTURE)


def main() -> None:
    path = find_browser()
    if path is None:
        raise SystemExit("the picture is made in a browser: apt-get install chromium")
    teller = Teller(datetime.now(UTC) - timedelta(days=3, hours=9))
    browser = Browser(path)
    try:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "chats.db"
            with hitherto.open(place, clock=teller.clock, maintenance=False) as store:
                ledger(store, teller)
                talk = scenes.coding(store)
            show(browser, place, talk.id[:8])
    finally:
        browser.close()


if __name__ == "__main__":
    main()
