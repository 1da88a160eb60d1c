"""Automatic checkpoints: every so many answers, or every so many seconds, the conversation as a snapshot.

The store has everything already; a checkpoint is a copy that can leave it. It is made in a thread of its own, from what
is stored, so that nobody who talks waits for it. If they come faster than they can be made, the newest is made.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..conversation import Conversation
from ..dialects import dialect
from ..dialects._repair import repair
from ..errors import InvalidArgument
from ..events import warn
from ..snapshots import Snapshot

if TYPE_CHECKING:
    from ..store import Store

DIALECTS = {
    "claude": "anthropic",
    "openai": "openai-chat",
    "openai-compatible": "openai-chat",
    "local": "openai-chat",
}


def snapshot_of(talk: Conversation) -> Snapshot:
    """The thread that a handle stands at the end of, as a snapshot in the words of its provider."""
    path, setup = talk._path(), talk.setup
    spoken = dialect(spoken_in(talk))
    messages = spoken.history(repair(path, spoken).messages)
    metadata = {"dialect": spoken.name, "conversation": talk.id, "head": talk.at or ""}
    return Snapshot.new(
        setup.provider, setup.model, setup.system_prompt, messages, list(setup.tools), metadata=metadata
    )


def spoken_in(talk: Conversation, provider: str | None = None) -> str:
    """The dialect of a provider; by default the one that the conversation is written in."""
    written = [(message.extra or {}).get("dialect") for message in talk._path(lazy=True)]
    found = next((name for name in written if isinstance(name, str)), None)
    name = provider or found or talk.provider or "openai"
    return DIALECTS.get(name, name)


class Checkpoints:
    """When a checkpoint is due, and the thread that makes it."""

    def __init__(self, save: object, turns: int | None, seconds: float | None) -> None:
        """`save` takes a snapshot: a function, or something with a method of that name."""
        found = getattr(save, "save", save)
        if not callable(found):
            raise InvalidArgument("a checkpoint goes to a function, or to something with a method `save`")
        if turns is not None and (type(turns) is not int or turns < 1):
            raise InvalidArgument("checkpoint_turns is a number from 1 up")
        if seconds is not None and not (isinstance(seconds, (int, float)) and seconds > 0):
            raise InvalidArgument("checkpoint_seconds is a number of seconds, more than 0")
        self._save: Callable[[Snapshot], object] = found
        self._turns = 1 if turns is None and seconds is None else turns
        self._seconds = seconds
        self._count = 0
        self._last = time.monotonic()
        self._lock = threading.Lock()
        self._next: tuple[Store, str] | None = None
        self._thread: threading.Thread | None = None

    def answered(self, store: "Store", message: str) -> None:
        """An answer was kept."""
        with self._lock:
            self._count += 1
            by_count = self._turns is not None and self._count >= self._turns
            by_time = self._seconds is not None and time.monotonic() - self._last >= self._seconds
            if not by_count and not by_time:
                return
            self._count, self._last, self._next = 0, time.monotonic(), (store, message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="hitherto-checkpoint", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                due, self._next = self._next, None
                if due is None:
                    self._thread = None
                    return
            try:
                self._save(snapshot_of(due[0].conversation(due[1])))
            except Exception as error:  # noqa: BLE001  # a failed copy must not stop the chat, and is said
                warn(f"a checkpoint could not be made: {type(error).__name__}: {error}"[:300])

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until there is nothing to do. False if there still is."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_seconds)
        return self._thread is None
