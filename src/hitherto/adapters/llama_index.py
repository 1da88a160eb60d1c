"""A chat store for LlamaIndex: `Memory.from_defaults(session_id="user-42", chat_store=ChatStore(store))`.

A key is a conversation of the kind `chat`, a chat message is a message of it. The framework takes old messages out of
its queue, to archive or to delete them, while newer ones stay. In a tree a message with others below it cannot go. So
an item of the conversation, `llama-index/queue`, says which ranges of messages are archived or deleted, and the content
of those that are deleted is erased: an empty event stays in their place.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from .._system.task_threads import shared_threads
from ..aio import AsyncStore
from ..conversation import Conversation
from ..errors import Conflict, NotFound
from ..items import Item
from ..model import Message, Saved
from ..store import Store
from ._llama_messages import json_of, message_of
from ._opening import Location, import_framework, open_any

__all__ = ["ChatStore"]

_TRIED: Final = ">=0.14,<0.15"
_QUEUE: Final = "llama-index/queue"
_WINDOW: Final = 64  # messages that are read first, from the end
_ATTEMPTS: Final = 100


def _import(module: str) -> Any:
    return import_framework(module, "llama-index-core", "llama-index", _TRIED)


_base: Any = _import("llama_index.core.storage.chat_store.base_db")
_types: Any = _import("llama_index.core.base.llms.types")
_pydantic: Any = _import("llama_index.core.bridge.pydantic")

T = TypeVar("T")
ChatMessage = Any
Status = Any
Ranges = list[tuple[int, int]]


class _Queue(Struct, omit_defaults=True):
    """Which messages were archived or deleted since they were added, by their sequence, both ends included."""

    archived: Ranges = []  # msgspec copies it
    deleted: Ranges = []  # as above
    erase: list[str] = []  # ids of messages whose content has to go yet

    @property
    def floor(self) -> int:
        """The sequence below which no message is in the queue any more."""
        ends = sorted([*self.archived, *self.deleted])
        floor = 0
        for start, end in ends:
            if start > floor:
                break
            floor = max(floor, end + 1)
        return floor


class _Entry(NamedTuple):
    """A message that is there, with its status now."""

    message: Saved
    json: dict[str, object]
    status: str


class ChatStore(_base.AsyncDBChatStore):
    """The chat messages of LlamaIndex, kept in hitherto.

    A message is named by its sequence in the conversation: `delete_message(key, idx)` takes one of `ids(key)`.
    """

    location: str | None = None
    _store: Any = _pydantic.PrivateAttr()

    def __init__(self, store: Store | AsyncStore | Location | None = None, *, location: str | None = None) -> None:
        """`location` stands for the store where the framework loads what it has saved."""
        found = location if store is None else store
        super().__init__(location=None if isinstance(found, Store | AsyncStore) else str(found))
        self._store = open_any(found)  # type: ignore[arg-type]  # None is refused there, with a hint

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> "ChatStore":
        """A copy is another chat store on the same store."""
        copied = type(self)(self.store)
        copied.location = self.location
        return copied

    @property
    def store(self) -> Store:
        store: Store = self._store
        return store

    @classmethod
    def class_name(cls) -> str:
        return "HithertoChatStore"

    async def get_messages(
        self, key: str, status: Status = _base.MessageStatus.ACTIVE, limit: int | None = None, offset: int | None = None
    ) -> list[ChatMessage]:
        """Return the messages of this status, or all of them, the oldest first."""
        found = await _run(self._read, key, status)
        rest = found[offset or 0 :]
        return [_decode(entry) for entry in (rest if limit is None else rest[:limit])]

    async def count_messages(self, key: str, status: Status = _base.MessageStatus.ACTIVE) -> int:
        """Count the messages of this status, or all of them."""
        return len(await _run(self._read, key, status))

    async def ids(self, key: str, status: Status = _base.MessageStatus.ACTIVE) -> list[int]:
        """Return the ids of the messages that `get_messages` returns, in the same order."""
        return [entry.message.seq for entry in await _run(self._read, key, status)]

    async def add_message(self, key: str, message: ChatMessage, status: Status = _base.MessageStatus.ACTIVE) -> None:
        """Add a message."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: Status = _base.MessageStatus.ACTIVE
    ) -> None:
        """Add messages, all or none of them."""
        added = [message_of(message.model_dump(mode="json"), status.value) for message in messages]
        if added:
            await _run(self._add, key, added)

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: Status = _base.MessageStatus.ACTIVE
    ) -> None:
        """Put these messages in the place of all that are there. The old ones are there until the new ones are."""
        added = [message_of(message.model_dump(mode="json"), status.value) for message in messages]
        await _run(self._replace, key, added)

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete one message and return it; None if there is none of this id."""
        found = await _run(self._take_out, key, lambda entries: [one for one in entries if one.message.seq == idx])
        return _decode(found[0]) if found else None

    async def delete_messages(self, key: str, status: Status | None = None) -> None:
        """Delete all messages, or those of this status."""
        if status is None:
            await _run(self._purge, key)
        else:
            await _run(self._take_out, key, lambda entries: [one for one in entries if one.status == status.value])

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the oldest active messages and return them."""
        return [_decode(one) for one in await _run(self._take_out, key, lambda entries: _active(entries)[: max(n, 0)])]

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the oldest active messages and return them."""
        return [_decode(one) for one in await _run(self._archive, key, n)]

    async def get_keys(self) -> list[str]:
        """Return the keys that have messages."""
        return await _run(self._keys)

    # -- what they do, in a thread

    def _read(self, key: str, status: Status | None) -> list[_Entry]:
        talk = self.store.find(key)
        if talk is None:
            return []
        queue = _queue(talk.items.get(_QUEUE))
        active = _base.MessageStatus.ACTIVE.value
        wanted = None if status is None else status.value
        entries = _entries(talk, queue, queue.floor if wanted == active else 0)
        return [entry for entry in entries if wanted is None or entry.status == wanted]

    def _add(self, key: str, messages: list[Message]) -> None:
        self._ensure(key).extend(messages, on_conflict="follow")

    def _replace(self, key: str, messages: list[Message]) -> None:
        talk = self.store.find(key)
        if talk is None or talk.head is None or not messages:
            if talk is not None:
                self._purge(key)
            if messages:
                self._add(key, messages)
            return
        roots = [message.id for message in self.store.messages(conversation=talk) if message.parent is None]
        with talk.fork(before=roots[-1]).batch() as batch:
            batch.extend(messages)
            batch.items[_QUEUE] = msgspec.json.encode(_Queue())
        self.store.delete(roots, recursive=True, missing_ok=True)

    def _archive(self, key: str, n: int) -> list[_Entry]:
        def change(talk: Conversation, queue: _Queue) -> tuple[_Queue, list[_Entry]]:
            taken = _active(_entries(talk, queue, queue.floor))[: max(n, 0)]
            archived = _joined(queue.archived, [one.message.seq for one in taken])
            return msgspec.structs.replace(queue, archived=archived), taken

        return self._change(key, change)

    def _take_out(self, key: str, choose: Any) -> list[_Entry]:
        """Delete the messages that are chosen of all, and return them."""

        def change(talk: Conversation, queue: _Queue) -> tuple[_Queue, list[_Entry]]:
            taken = choose(_entries(talk, queue, 0))
            deleted = _joined(queue.deleted, [one.message.seq for one in taken])
            erase = [*queue.erase, *(one.message.id for one in taken)]
            return msgspec.structs.replace(queue, deleted=deleted, erase=erase), taken

        taken = self._change(key, change)
        self._erase(key)
        return taken

    def _change(self, key: str, change: Any) -> list[_Entry]:
        """Change the queue of a conversation. If another writer was faster, look again."""
        for _ in range(_ATTEMPTS):
            talk = self.store.find(key)
            if talk is None:
                return []
            seen = talk.items.get(_QUEUE)
            queue, taken = change(talk, _queue(seen))
            if not taken:
                return []
            try:
                talk.items.put(_QUEUE, msgspec.json.encode(queue), expect=None if seen is None else seen.revision)
            except Conflict:
                continue
            found: list[_Entry] = taken
            return found
        raise Conflict(expected=None, head=None)

    def _erase(self, key: str) -> None:
        """Erase the content of messages that are deleted; of all of them if none is left."""
        talk = self.store.find(key)
        seen = None if talk is None else talk.items.get(_QUEUE)
        if talk is None or seen is None:
            return
        if not _entries(talk, _queue(seen), 0):
            self._purge(key)
            return
        for id in _queue(seen).erase:
            with suppress(NotFound):
                talk.amend(id, Message("event"))
        with suppress(Conflict):  # another writer is here and erases them, too
            done = msgspec.structs.replace(_queue(seen), erase=[])
            talk.items.put(_QUEUE, msgspec.json.encode(done), expect=seen.revision)

    def _purge(self, key: str) -> None:
        talk = self.store.find(key)
        with suppress(NotFound):  # another one was faster
            if talk is not None:
                self.store.purge(talk, reason="user-requested")

    def _keys(self) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = self.store.conversations(limit=500, cursor=cursor, metadata={"framework": "llama-index"})
            found += [info.key for info in page if info.key is not None and info.count]
            cursor = page.next_cursor
            if cursor is None:
                return found

    def _ensure(self, key: str) -> Conversation:
        return self.store.ensure(key, metadata={"framework": "llama-index"})


async def _run(work: Any, *args: object) -> Any:
    return await shared_threads().run(work, *args)


def _entries(talk: Conversation, queue: _Queue, floor: int) -> list[_Entry]:
    """Return the messages that are there from this sequence on."""
    window, path = _WINDOW, list[Saved]()
    while True:
        path = talk.thread(events=True, last=window if floor else None)
        if not floor or len(path) < window or path[0].seq <= floor:
            break
        window *= 4
    return [entry for message in path if message.seq >= floor and (entry := _entry(message, queue)) is not None]


def _entry(message: Saved, queue: _Queue) -> _Entry | None:
    found = json_of(message)
    if found is None or _holds(queue.deleted, message.seq):
        return None
    json, status = found
    return _Entry(message, json, _base.MessageStatus.ARCHIVED.value if _holds(queue.archived, message.seq) else status)


def _active(entries: Iterable[_Entry]) -> list[_Entry]:
    return [entry for entry in entries if entry.status == _base.MessageStatus.ACTIVE.value]


def _holds(ranges: Ranges, seq: int) -> bool:
    return any(start <= seq <= end for start, end in ranges)


def _joined(ranges: Ranges, more: list[int]) -> Ranges:
    """Return the ranges with more numbers in them, those that touch each other as one."""
    found: Ranges = []
    for start, end in sorted([*ranges, *((seq, seq) for seq in more)]):
        if found and start <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _queue(item: Item | None) -> _Queue:
    return _Queue() if item is None else msgspec.json.decode(item.value, type=_Queue)


def _decode(entry: _Entry) -> ChatMessage:
    return _types.ChatMessage.model_validate(entry.json)
