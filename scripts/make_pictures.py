"""Makes the pictures of the viewer in docs/: `.venv/bin/python -m scripts.make_pictures`. It needs chromium.

The conversations are made up, the rest is real: a store in a folder of its own, the viewer over it, and a browser that
looks at it. A clock of its own spreads the messages over some days.
"""

import struct
import tempfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import hitherto
from hitherto import Block, Conversation, Message, Store
from hitherto.model import Usage
from tests.support import scenes
from tests.support.browser import Browser, find_browser
from tests.support.serving import served

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
WIDTH, HEIGHT = 1180, 800
MAP_HEIGHT = 975
SCALE = 1.2
MOST_BYTES = 250_000


class Turn(NamedTuple):
    """A prompt with its answer; more of them follow until the stretch has `messages`. Other ways to go on leave it at
    its end."""

    prompt: str
    messages: int = 2
    label: str | None = None
    hours: float = 0.4  # since the turn before
    others: tuple["Turn", ...] = ()
    then: "Turn | None" = None


LEDGER = Turn(
    "Help me to keep the ledger of a small harbour: ships, berths and fees.",
    6,
    others=(
        Turn(
            "Begin with the fees, and find the tables from there",
            8,
            others=(Turn("By length, not by tonnage", 12),),
            then=Turn("Round up to whole days", 10),
        ),
        Turn("Could this be one spreadsheet?", 4),
    ),
    then=Turn(
        "Go on with three tables. A berth can be empty for weeks.",
        14,
        label="three tables",
        hours=20,
        others=(
            Turn(
                "Try events in place of tables: arrives, moors, leaves",
                26,
                label="events",
                others=(
                    Turn(
                        "Rebuild the berths from the events",
                        8,
                        others=(Turn("From the newest back", 4),),
                        then=Turn("Only those that changed", 12),
                    ),
                    Turn("What if two events have the same second?", 6),
                ),
                then=Turn("Too clever. Which of it do we keep?", 4),
            ),
        ),
        then=Turn(
            "Write the migration, and a test that fails without it",
            32,
            hours=3,
            others=(Turn("Without the trigger", 8),),
            then=Turn(
                "The fees of March are wrong by one day. Find out why.",
                22,
                hours=26,
                others=(Turn("Is it the summer time?", 6, label="no: it is not"),),
            ),
        ),
    ),
)


class Teller:
    """Writes turns into a conversation, at times of its own."""

    def __init__(self, start: datetime) -> None:
        self.now = start

    def clock(self) -> int:
        self.now += timedelta(seconds=41)
        return int(self.now.timestamp() * 1_000_000)

    def tell(self, talk: Conversation, turn: Turn) -> None:
        self.now += timedelta(hours=turn.hours)
        at = ""
        for number in range(0, turn.messages, 2):
            words = turn.prompt if number == 0 else "And after that?"
            first = talk.append(Message.user(words))
            at = talk.append(Message.assistant("As you say.", usage=Usage(900, 120))).id
            if number == 0 and turn.label:
                talk.label(turn.label, message=first.id)
        for other in turn.others:
            self.tell(talk.fork(at=at), other)
        if turn.then is not None:
            self.tell(talk, turn.then)


def ledger(store: Store, teller: Teller) -> str:
    """A conversation over some days, with branches, sub-agents and a summary."""
    talk = store.start(title="The ledger of a harbour", model="claude-sonnet-4-5", provider="claude")
    teller.tell(talk, LEDGER)
    talk.append(Message.user("Let two helpers read the receipts of March."))
    call = talk.append(
        Message.assistant([Block.tool_call("c1", "Task", {"description": "Read every receipt of March"})])
    )
    for name, words in (
        ("reader", "Read every receipt of March, and list those that end on a Sunday."),
        ("checker", "Compare the fees with the berths, day by day."),
    ):
        agent = talk.subagent(name, f"run-{name}", call=call.id)
        agent.extend([Message.user(words), Message.assistant("Four of them.")])
    talk.append(Message.tool_result("c1", "Four receipts end on a Sunday."))
    talk.append(Message.assistant("Four receipts end on a Sunday: the last day is counted twice."))
    main = store.conversation(talk.id)
    main.compact("Three tables, a migration with its test; a day was counted twice on Sundays. Open: the report.")
    teller.now += timedelta(hours=1)
    main.append(Message.user("Now the report for the harbour master."))
    main.append(Message.assistant("Here it is."))
    return talk.id


def smaller(png: bytes) -> bytes:
    """Compress a picture as well as the format can without other pixels."""
    out, place, data = png[:8], 8, b""
    while place < len(png):
        (length,), kind = struct.unpack(">I", png[place : place + 4]), png[place + 4 : place + 8]
        body = png[place + 8 : place + 8 + length]
        place += 12 + length
        if kind == b"IDAT":
            data += body
            continue
        if kind == b"IEND":
            packed = zlib.compress(zlib.decompress(data), 9)
            out += struct.pack(">I", len(packed)) + b"IDAT" + packed + struct.pack(">I", zlib.crc32(b"IDAT" + packed))
        out += png[place - 12 - length : place]
    return out


def main() -> None:
    path = find_browser()
    if path is None:
        raise SystemExit("the pictures are made in a browser: apt-get install chromium")
    teller = Teller(datetime.now(UTC) - timedelta(days=3, hours=9))
    browser = Browser(path)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            hitherto.open(Path(folder) / "chats.db", clock=teller.clock, maintenance=False) as store,
            served(store) as running,
            browser.page(width=WIDTH, height=HEIGHT) as page,
        ):
            coding, branches = scenes.coding(store).id, ledger(store, teller)
            page.open(running.door)
            page.until("!location.search && document.querySelector('main')")
            for name, place, height, ready in (
                ("viewer", f"/c/{coding}", HEIGHT, "document.querySelector('#side .map')"),
                ("viewer-map", f"/c/{branches}/map", MAP_HEIGHT, "document.querySelector('.map')"),
            ):
                page.send(
                    "Emulation.setDeviceMetricsOverride",
                    width=WIDTH,
                    height=height,
                    deviceScaleFactor=SCALE,
                    mobile=False,
                )
                page.open(running.address + place)
                page.until(ready)
                page.run("document.querySelector('details.tool')?.setAttribute('open', '')")
                page.run("new Promise((done) => setTimeout(done, 500))")
                file = DOCS / f"{name}.png"
                page.screenshot(file)
                file.write_bytes(smaller(file.read_bytes()))
                size = file.stat().st_size
                print(f"{file.relative_to(ROOT)}: {size:,} bytes")
                assert size < MOST_BYTES, "too large for the documentation"
    finally:
        browser.close()


if __name__ == "__main__":
    main()
