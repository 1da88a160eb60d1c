"""The programs that `test_rotation` starts, kills and lets race: `python _rotators.py <program> …`.

They talk in lines, as those in `writer_processes` do.
"""

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import hitherto
from hitherto import HithertoError, Key, Message, Store
from hitherto._engine import attachments, compression
from hitherto._sealing import reencryption, rotation
from hitherto.backends.sqlite import SqliteBackend
from hitherto.backends.sqlite.fts import FtsIndex

if TYPE_CHECKING:
    from hitherto.reports import RotationProgress, RotationReport


def say(*words: object) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def key_of(text: str) -> Key | None:
    """A key as our arguments name one: `-` for none, a path, or 64 digits."""
    if text == "-":
        return None
    return Key.from_file(text) if os.sep in text else Key(bytes.fromhex(text))


def small_steps() -> None:
    """So that even a small store takes many."""
    reencryption._STEP = 24
    rotation._AT_ONCE = reencryption._AT_ONCE = 4
    attachments._AT_ONCE = 2
    compression._MIN_BYTES = 1 << 40  # what is squeezed leaves no traces that a test could find


def run(
    store: Store, job: str, key: Key | None, progress: "Callable[[RotationProgress], None] | None" = None
) -> "RotationReport":
    if job == "unseal":
        return store.unseal(progress=progress)
    assert key is not None
    if job == "seal":
        return store.seal(key, progress=progress)
    return store.rotate(key, reencrypt=job == "reencrypt", progress=progress)


WRITES = (
    (SqliteBackend, "commit"),
    (SqliteBackend, "stage"),
    (SqliteBackend, "unstage"),
    (SqliteBackend, "scrub"),
    (FtsIndex, "clear"),
    (FtsIndex, "scrub"),
)


def die_before(moment: int) -> None:
    """Kill this process when it is about to write for this time."""
    count = 0

    def watched(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **named)

        return call

    for owner, name in WRITES:
        setattr(owner, name, watched(getattr(owner, name)))


def killed() -> None:
    """For each line `path key job key moment`, a process that does the job and is killed before it writes for that
    time, or when it is done: say which."""
    small_steps()
    for line in sys.stdin:
        path, old, job, new, moment = line.split()
        child = os.fork()
        if child == 0:
            store = hitherto.open(path, key=key_of(old), maintenance=False)
            die_before(int(moment))
            run(store, job, key_of(new))
            os.kill(os.getpid(), signal.SIGUSR1)  # done: but not closed
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            say("failed")
        else:
            say("killed" if os.WTERMSIG(status) == signal.SIGKILL else "done")


class Writer:
    """The work of a program that knows nothing of rotation."""

    def __init__(self, store: Store, talk: str, name: str) -> None:
        self.store, self.talk, self.name = store, store.conversation(talk), name
        self.count = 0

    def do(self, what: str) -> str:
        self.count += 1
        text = f"{self.name}-{self.count}"
        if what == "append":
            return self.talk.append(Message.user(text), on_conflict="follow").id
        if what == "start":
            return self.store.start(title=text).append(Message.user(text)).id
        if what == "ensure":
            return self.store.ensure("the one").append(Message.user(text), on_conflict="follow").id
        if what == "label":
            self.talk.label(text)
            return text
        if what == "read":
            return str(len(self.talk.thread()))
        if what == "list":
            return str(sum(message.problem is None for message in self.store.messages()))
        if what == "maintain":
            return str(self.store.maintain().packed)
        raise AssertionError(what)


def writer(path: str, key: str, talk: str, name: str) -> None:
    """Do what each line says; say what came of it."""
    with hitherto.open(path, key=key_of(key), maintenance=False) as store:
        hands = Writer(store, talk, name)
        say("ready")
        for line in sys.stdin:
            what = line.strip()
            try:
                say("ok", what, hands.do(what))
            except HithertoError as error:
                say("error", what, type(error).__name__)


def busy(path: str, key: str, talk: str, name: str) -> None:
    """Do everything, over and over, until a line comes; say all that was saved, and the errors there were."""
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    errors: Counter[str] = Counter()
    with hitherto.open(path, key=key_of(key)) as store:
        hands = Writer(store, talk, name)
        say("ready")
        while not stop.is_set():
            for what in ("append", "start", "append", "ensure", "append", "label", "read", "list"):
                try:
                    found = hands.do(what)
                    if what in ("append", "start", "ensure"):
                        say("saved", found)
                except HithertoError as error:
                    errors[f"{what}:{type(error).__name__}"] += 1
    for kind, count in errors.items():
        say("error", kind, count)
    say("end")


def rotator(path: str, key: str, job: str, new: str) -> None:
    """Wait for a line, then do the job."""
    with hitherto.open(path, key=key_of(key), maintenance=False) as store:
        say("ready")
        sys.stdin.readline()
        try:
            say("done", run(store, job, key_of(new)).complete)
        except HithertoError as error:
            say("error", type(error).__name__)


def rotating(path: str, key: str, job: str, new: str) -> None:
    """Begin the job, and never end it: the first commit of the second step waits for ever."""
    small_steps()
    steps = 0
    inner = reencryption._Step.run

    def step(self: reencryption._Step) -> bool:
        nonlocal steps
        steps += 1
        if steps == 2:
            say("begun")
            threading.Event().wait()
        return inner(self)

    reencryption._Step.run = step  # type: ignore[method-assign]
    run(hitherto.open(path, key=key_of(key), maintenance=False), job, key_of(new))


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program for program in (killed, writer, busy, rotator, rotating)
}


def main(arguments: Sequence[str]) -> None:
    PROGRAMS[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
