"""The programs that `test_processes` starts, kills and interrupts: `python writer_processes.py <program> <store> …`.

They talk in lines. A program reports each acknowledged save. A line written in one `os.write` is in the pipe even if
the program is killed the moment after.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from unittest import mock

import apsw

import hitherto
from hitherto import Message
from hitherto.backend import Change
from hitherto.backends.sqlite.writing import Place, Writer
from hitherto.errors import Conflict


def say(*words: object) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def appender(path: str, name: str, first: str, end: str, own: str, shared: str) -> None:
    """Append messages by turns to a conversation of our own and to one that all writers share; say each number."""
    with hitherto.open(path) as store:
        mine, ours = store.conversation(own), store.conversation(shared)
        for number in range(int(first), int(end)):
            message = Message.user(f"{name} {number}")
            if number % 2:
                ours.append(message, on_conflict="follow")
            else:
                mine.append(message)
            say(number)


def crowd(path: str, name: str, threads: str, count: str, shared: str) -> None:
    """Several threads that append to the one conversation all share, each its own way."""
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            handle = store.conversation(shared)
            for number in range(int(count)):
                saved = handle.append(Message.user(f"{name}.{thread} {number}"), on_conflict="follow")
                if thread == 0:
                    handle.label(f"{name} {number}", message=saved.id)
        except BaseException as error:
            errors.append(error)
            raise

    with hitherto.open(path) as store:
        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(int(threads))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    sys.exit(bool(errors))


def turns(path: str, talk: str, first: str, pause: str, how: str) -> None:
    """Save turns of two messages, `together` or `apart`, saying each begin and end. In turn number `pause`, wait to
    be killed between the last write and its COMMIT."""
    apply = Writer.apply
    current = int(first)
    writes = 0

    def apply_and_wait(writer: Writer, connection: apsw.Connection, change: Change, place: Place) -> None:
        nonlocal writes
        apply(writer, connection, change, place)
        writes += 1
        if current == int(pause) and writes == (1 if how == "together" else 2):
            say("inside", current)
            sys.stdin.readline()

    with hitherto.open(path) as store, mock.patch.object(Writer, "apply", apply_and_wait):
        handle = store.conversation(talk)
        while True:
            writes = 0
            messages = Message.user(f"{current} asked"), Message.assistant(f"{current} answered")
            say("begin", current)
            if how == "together":
                handle.extend(messages)
            else:
                for message in messages:
                    handle.append(message)
            say("saved", current)
            current += 1


def interrupted(path: str, shared: str, threads: str) -> None:
    """Append from several threads while Ctrl+C is pressed; go on until told to stop; say what was saved."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background has it ignored
    store = hitherto.open(path)
    stop = threading.Event()
    saved: list[str] = []

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    def work(name: str) -> None:
        mine, ours = store.start(title=name), store.conversation(shared)
        number = 0
        while not stop.is_set():
            append(mine if number % 2 else ours, f"{name} {number}")
            number += 1

    def append(handle: hitherto.Conversation, text: str) -> None:
        handle.append(Message.user(text), on_conflict="follow")
        saved.append(text)

    workers = [threading.Thread(target=work, args=(f"worker-{n}",), daemon=True) for n in range(int(threads))]
    workers.append(threading.Thread(target=listen, daemon=True))
    for worker in workers:
        worker.start()
    mine, ours = store.start(title="main"), store.conversation(shared)
    number = 0
    say("ready")
    while not stop.is_set():
        try:
            while not stop.is_set():
                number += 1
                append(mine if number % 2 else ours, f"main {number}")
                say("saved")
        except KeyboardInterrupt:
            say("interrupted")
    for worker in workers:
        worker.join()
    append(mine, "main at-last")
    store.close()
    for text in saved:
        say("kept", text)


def rival(path: str, talk: str, name: str) -> None:
    """Append below the head that each line names, if it still is the head; `-` stands for whatever it is."""
    with hitherto.open(path) as store:
        handle = store.conversation(talk)
        say("ready")
        for line in sys.stdin:
            head = line.strip()
            try:
                if head == "-":
                    saved = handle.append(Message.user(name))
                else:
                    saved = handle.append(Message.user(name), expect_head=head)
                say("won", saved.id)
            except Conflict as conflict:
                say("lost", conflict.head)


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program for program in (appender, crowd, turns, interrupted, rival)
}


def main(arguments: Sequence[str]) -> None:
    PROGRAMS[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
