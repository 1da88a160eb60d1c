"""Tells open pages what changes in the store, whichever process writes.

The store's feed of changes is asked once a second, by one task for all pages, and only while a page listens. A page
hears the ids of conversations that changed, and fetches what it shows of them itself. A listener that is slow misses
nothing: what waits for it is a set.
"""

import asyncio
import json
from collections.abc import AsyncIterator

from anyio.to_thread import run_sync
from msgspec.structs import replace

from ..backend import Changes
from ..errors import HithertoError
from ..ids import show_conversation_id
from .access import Access

__all__ = ["Feed"]

_EVERY_SECONDS = 1.0
_ALIVE_SECONDS = 15.0  # a comment that often tells both sides that the other is there
_COMPARED = 100  # conversations
_ALL, _LOCKED, _LOST = "*", "locked", "lost"


class _Listener:
    """What waits for a page."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.woken = asyncio.Event()

    def tell(self, names: set[str]) -> None:
        self.waiting |= names
        self.woken.set()


class Feed:
    """Events for pages."""

    def __init__(self, access: Access, *, every_seconds: float = _EVERY_SECONDS) -> None:
        self._access, self._every_seconds = access, every_seconds
        self._listeners: set[_Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._newest: object = None  # conversations, of a store that cannot tell what changed

    async def listen(self, conversation: str | None) -> AsyncIterator[bytes]:
        """Yield server-sent events: of one conversation, or of all."""
        listener = _Listener()
        self._listeners.add(listener)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield b"retry: 2000\n\n"
            while True:
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        await listener.woken.wait()
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                names, listener.waiting = listener.waiting, set()
                listener.woken.clear()
                for kind in (_LOCKED, _LOST):
                    if kind in names:
                        yield f"event: {kind}\ndata: {{}}\n\n".encode()
                wanted = names if conversation is None else names & {conversation, _ALL}
                if wanted - {_LOCKED, _LOST}:
                    yield f"event: changed\ndata: {json.dumps(sorted(wanted - {_LOCKED, _LOST}))}\n\n".encode()
        finally:
            self._listeners.discard(listener)

    async def _poll(self) -> None:
        position: bytes | None = None
        state = ""
        while self._listeners:
            names: set[str] = set()
            try:
                found = await run_sync(self._look, position)
            except HithertoError:  # the store may come back: say so once, and go on asking
                names = {_LOST} if state != _LOST else set()
                state = _LOST
            else:
                if found is None:
                    names = {_LOCKED} if state != _LOCKED else set()
                    state = _LOCKED
                else:
                    if position is not None:
                        names = {show_conversation_id(id) for id in (*found.moved, *found.gone)}
                        names |= {_ALL} if found.everything or state else set()
                    position, state = found.position, ""
            if names:
                for listener in self._listeners:
                    listener.tell(names)
            await asyncio.sleep(self._every_seconds)

    def _look(self, position: bytes | None) -> Changes | None:
        view = self._access.peek()
        if view is None:
            return None
        found = view.store.backend.changes(position)
        if view.store.read_only is None:
            return found
        # Who only reads gets no feed: each look says that everything may have changed. The list tells whether it has.
        page = view.store.conversations(limit=_COMPARED, include_expired=True)
        newest = [(one.id, one.active_at, one.count, one.held) for one in page]
        is_new, self._newest = newest != self._newest, newest
        return replace(found, everything=is_new)
