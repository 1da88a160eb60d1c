"""Writers that go on whatever happens to the server: threads of a test, or programs of their own.

Each adds to a conversation of its own and, by turns, to one that all share, and notes what was acknowledged, and when.
As a program, `python -m tests.support.reconnecting_writers URL WORKSPACE KEY NAME SHARED`, it says so in lines, and
ends when it is told to.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

import hitherto
from hitherto import Message, Store


def write(store: Store, name: str, shared: str, stop: threading.Event, note: Callable[[int, float], None]) -> None:
    """Append until told to stop. The time is that of a clock which all processes share."""
    own, ours = store.ensure(name), store.conversation(shared)
    number = 0
    while not stop.is_set():
        (ours if number % 2 else own).append(Message.user(f"{name} {number}"), on_conflict="follow")
        note(number, time.monotonic())
        number += 1


def _say(number: int, at: float) -> None:
    os.write(1, f"{number} {at}\n".encode())  # in one piece


def main(url: str, workspace: str, key: str, name: str, shared: str) -> None:
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    with hitherto.open(url, workspace=workspace, key=bytes.fromhex(key) or None) as store:
        write(store, name, shared, stop, _say)


if __name__ == "__main__":
    main(*sys.argv[1:])
