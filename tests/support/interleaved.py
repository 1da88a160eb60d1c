"""Several processes at one store, of which one runs at a time: after each call to the backend, another one may go on.

Each process is a thread with a store of its own over the same backend in memory. A seed decides who goes on, and who is
killed and when, so whatever goes wrong can be looked at again. After every commit the rows are checked: nothing may be
sealed with a key that is not there any more.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hitherto._sealing.codec import Plain
from hitherto._sealing.sealed import AES, NO_KEY, read_box
from hitherto.backend import WORKSPACE, Backend, Batch, ConversationRow, Outcome, Where
from hitherto.errors import Damaged
from hitherto.ids import show_conversation_id
from hitherto.listing import conversations

STUCK_SECONDS = 120.0
Program = Callable[["Turns"], None]


class Killed(BaseException):
    """This process is gone: whatever it still tries, nothing reaches the store."""


class Scheduler:
    """Chooses the thread that runs next."""

    def __init__(self, seed: int, kills: float) -> None:
        self._random = random.Random(seed)
        self._kills = kills
        self._turn = threading.Condition()
        self._running: int | None = None
        self._alive: list[int] = []
        self.errors: list[BaseException] = []
        self.wrong: list[str] = []
        self.calls = self.killed = 0

    def run(self, programs: Sequence[Callable[[int], None]]) -> None:
        self._alive = list(range(len(programs)))
        threads = [
            threading.Thread(target=self._life, args=(me, program), daemon=True) for me, program in enumerate(programs)
        ]
        self._running = self._random.choice(self._alive)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(STUCK_SECONDS)
            assert not thread.is_alive(), "it never ends"

    def _life(self, me: int, program: Callable[[int], None]) -> None:
        try:
            self._wait(me)
            program(me)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # of another thread: the test looks at it
            self.errors.append(error)
        with self._turn:
            self._alive.remove(me)
            self._hand_over()

    def pause(self, me: int) -> None:
        """Let another one go on, or not. A process may be killed here."""
        if self._random.random() < self._kills and len(self._alive) > 1:
            self.killed += 1
            raise Killed
        with self._turn:
            self.calls += 1
            self._hand_over()
        self._wait(me)

    def _hand_over(self) -> None:
        self._running = self._random.choice(self._alive) if self._alive else None
        self._turn.notify_all()

    def _wait(self, me: int) -> None:
        with self._turn:
            assert self._turn.wait_for(lambda: self._running == me, STUCK_SECONDS), "it never ends"


class Turns:
    """The backend as one process sees it: each call is one turn."""

    def __init__(self, inner: Backend, scheduler: Scheduler, me: int) -> None:
        self._inner, self._scheduler, self._me = inner, scheduler, me
        self._gone = False

    @property
    def info(self) -> Any:
        return self._inner.info

    def close(self, *, untouched: bool = False) -> None:
        """The rows stay."""

    def _pause(self) -> None:
        if self._gone:
            raise Killed
        try:
            self._scheduler.pause(self._me)
        except Killed:
            self._gone = True
            raise

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        self._pause()
        outcomes = self._inner.commit(batches)
        self._scheduler.wrong += lost(self._inner)
        self._pause()  # whoever is killed here never hears of it
        return outcomes

    def chunks(self, *args: Any, **named: Any) -> Iterator[bytes]:
        for chunk in self._inner.chunks(*args, **named):
            self._pause()
            yield chunk

    def path(self, number: int) -> Iterator[Any]:
        for piece in self._inner.path(number):
            self._pause()
            yield piece

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)

        def call(*args: Any, **named: Any) -> Any:
            self._pause()
            return real(*args, **named)

        return call


def rows(backend: Backend) -> list[ConversationRow]:
    return [row for kind in backend.kinds() for row in conversations(backend, Where(kind), oldest_first=True)]


def lost(backend: Backend) -> list[str]:
    """Return the conversations that no key can open any more, judged by their headers."""
    found = []
    everything = rows(backend)
    (space,) = [row for row in everything if row.kind == WORKSPACE]
    home = read_box(space.data_key)
    for row in everything:
        if row.kind == WORKSPACE:
            continue
        slots, id = read_box(row.data_key), show_conversation_id(row.id)
        known = {slot.generation for slot in slots if slot.kind == AES}
        plain = not slots or any(slot.kind == NO_KEY for slot in slots)
        if plain and home and all(slot.kind for slot in home):
            found.append(f"{id} is plain, and the workspace is sealed")
        if slots and not home:
            found.append(f"{id} is sealed, and the workspace is plain")
        messages = backend.scan(row.id, limit=1 << 30)
        packs = backend.packs(sorted({m.number - m.number % 32 for m in messages if m.body is None}))
        held = {n for pack in packs for n in range(pack.first, pack.first + pack.count)}
        bodies = [("message", m.body) for m in messages if m.body is not None]
        bodies += [("pack", pack.body) for pack in packs]
        bodies += [("item", item.body) for item in backend.items(row.id)]
        for what, body in bodies:
            if not _opens(body, known, plain=plain):
                found.append(f"a {what} of {id} is under a key that is gone")
        if any(m.body is None and m.number not in held for m in messages):
            found.append(f"a message of {id} has no body")
        for attachment in backend.attachments(row.id):
            name = attachment.name
            sealed = len(name) == 36 and int.from_bytes(name[:4], "big") in known
            if attachment.messages and not sealed and not (plain and len(name) == 32):
                found.append(f"an attachment of {id} is named with a key that is gone")
    return found


def _opens(body: bytes, known: set[int], *, plain: bool) -> bool:
    if body[:3] == b"\x01\x01\x00" and int.from_bytes(body[3:7], "big") in known:
        return True
    if not plain:
        return False
    try:
        Plain().open(("record",), body)
    except Damaged:
        return False
    return True
