"""Where the conversations of pydantic-ai lie.

A conversation of the framework is one of ours, of the kind `chat`; its id is the key. Entries are messages, so people
find what was said. A fork shares the entries of the conversation that it began in, so it lives in the same tree: beside
a tree lie the records of its conversations, each an item that names its last entry, and an item of the workspace names
the tree of a fork.

An entry must not be released while another conversation begins to use it. So each write of a record also writes the
item `releases` of the tree, with the revision it has seen: of a deletion and a write that meet there, the second one
looks again.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from ..conversation import Conversation
from ..dialects._framework_names import key_of
from ..errors import Conflict, Held, NotFound
from ..items import Item
from ..model import Saved
from ..store import Store
from ._opening import import_framework
from ._pydantic_messages import json_of, message_of
from ._pydantic_runs import RunJournal

_TRIED: Final = ">=2.66,<3"
conversations: Any = import_framework("pydantic_ai.conversation_store", "pydantic-ai-slim", "pydantic-ai", _TRIED)
messages: Any = import_framework("pydantic_ai.messages", "pydantic-ai-slim", "pydantic-ai", _TRIED)
_pydantic: Any = import_framework("pydantic", "pydantic", "pydantic-ai", _TRIED)

_RECORDS: Final = "pydantic-ai/record"
_FORKS: Final = "pydantic-ai/fork"  # items of the workspace
_RELEASES: Final = "pydantic-ai/releases"
_EVERYTHING: Final = "*"  # in the releases: the tree is about to be purged
_ATTEMPTS: Final = 100
_PLACES: Final = 10_000  # entries whose tree is remembered

_RECORD: Any = _pydantic.TypeAdapter(conversations.ConversationRecord)

Entry = Any
Record = Any


class EntryNotFound(NotFound, LookupError):
    """An entry is not in the store. The framework looks for a `LookupError`."""


class ConversationTrees:
    """The conversations of a store, and which tree holds an entry."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._trees: dict[str, str] = {}  # the conversation that holds an entry, by the id of the entry

    def read_record(self, conversation_id: str) -> Record | None:
        talk = self._find(conversation_id)
        return None if talk is None else self._take(talk, talk.items.get(key_of(_RECORDS, conversation_id)))

    def read_records(self, scope: str | None, limit: int | None) -> list[Record]:
        found: list[Record] = []
        cursor: str | None = None
        while True:
            page = self._store.conversations(limit=500, cursor=cursor, metadata={"framework": "pydantic-ai"})
            for info in page:
                with suppress(NotFound):  # deleted meanwhile
                    talk = self._store.conversation(info)
                    found += [self._take(talk, item) for item in talk.items.scan(f"{_RECORDS}/")]
            cursor = page.next_cursor
            if cursor is None:
                break
        found = [record for record in found if scope is None or record.scope == scope]
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return found[:limit]

    def read_history(self, head: str, limit: int | None) -> list[Entry]:
        talk, message = self._locate(head)
        last = None if limit is None else limit + 1  # the one above tells the parent
        path = [m for m in talk.fork(at=message).thread(events=True, last=last) if json_of(m) is not None]
        keys = [None, *(m.key for m in path)]
        decoded = decode([json_of(m) for m in path])
        entries = [
            conversations.ConversationEntry(id=m.key, parent_id=parent, message=one)
            for m, parent, one in zip(path, keys, decoded, strict=False)
        ]
        return entries if limit is None else entries[-limit:]

    def write(self, record: Record, entries: list[Entry], expected: str | None) -> None:
        name, new = key_of(_RECORDS, record.conversation_id), {entry.id for entry in entries}
        parent = entries[0].parent_id if entries else None
        needed = {id for id in (parent, record.head_id) if id is not None and id not in new}
        data = _RECORD.dump_json(record)
        new_messages = [message_of(one, entry.id) for one, entry in zip(_encode(entries), entries, strict=True)]
        runs = {entry.message.run_id for entry in entries}
        models = [getattr(entry.message, "model_name", None) for entry in entries]
        model = next((found for found in reversed(models) if found), None)
        for _ in range(_ATTEMPTS):
            talk = self._find(record.conversation_id) or self._begin(record, needed)
            seen, releases = talk.items.get(name), talk.items.get(_RELEASES)
            if (None if seen is None else self._take(talk, seen).revision) != expected:
                raise conversations.ConversationConflict(record.conversation_id)
            released = _released(releases)
            if _EVERYTHING in released:
                self._purge(talk)
                continue
            there = {message.key: message for message in talk.get(keys=needed, missing_ok=True)}
            if needed & released or needed - there.keys():
                raise conversations.ConversationConflict(record.conversation_id)
            try:
                self._point(record.conversation_id, talk)
                place = self._stand(talk, there.get(parent))
                if model is not None:
                    place.configure(model=model)  # nothing is written if it is the same
                with place.batch() as batch:
                    batch.extend(new_messages)
                    batch.items.put(name, data, expect=None if seen is None else seen.revision)
                    _put_releases(batch.items, releases, released)
                    self.journal_of(record.conversation_id).remove(talk, batch, runs)
            except (Conflict, NotFound):  # somebody wrote or deleted here meanwhile
                continue
            self._remember(talk, [*new, *needed])
            return
        raise conversations.ConversationConflict(record.conversation_id)

    def delete(self, conversation_id: str, expected: str) -> None:
        name = key_of(_RECORDS, conversation_id)
        for _ in range(_ATTEMPTS):
            talk = self._find(conversation_id)
            seen = None if talk is None else talk.items.get(name)
            if talk is None or seen is None or self._take(talk, seen).revision != expected:
                raise conversations.ConversationConflict(conversation_id)
            if talk.refresh().held:
                raise Held("the conversation is on hold")
            releases = talk.items.get(_RELEASES)
            others = [self._take(talk, item) for item in talk.items.scan(f"{_RECORDS}/") if item.name != name]
            gone = self._unused(talk, others) if others else {}
            released = _released(releases) | ({*gone.values()} if others else {_EVERYTHING})
            try:
                with talk.batch() as batch:
                    batch.items.delete(name, expect=seen.revision)
                    _put_releases(batch.items, releases, released)
                    self.journal_of(conversation_id).remove(talk, batch)
            except (Conflict, NotFound):  # somebody wrote or deleted here meanwhile
                continue
            if others:
                self._release(talk, gone)
            else:
                self._purge(talk)
            self._store.items.delete(key_of(_FORKS, conversation_id), missing_ok=True)
            return
        raise conversations.ConversationConflict(conversation_id)

    def _release(self, talk: Conversation, gone: dict[str, str]) -> None:
        """Erase entries that are named in the releases, and take them out of there."""
        if gone:
            self._store.delete(gone, recursive=True, missing_ok=True)
        while gone and (seen := talk.items.get(_RELEASES)) is not None:
            with suppress(Conflict):
                _put_releases(talk.items, seen, _released(seen) - {*gone.values()})
                return

    def _unused(self, talk: Conversation, records: list[Record]) -> dict[str, str]:
        """Return the messages whose entries none of the records reaches: their keys, by their ids. A message that is no
        entry is used, and so is all above it."""
        tree = {m.id: m for m in self._store.messages(conversation=talk, newest_first=False)}
        tips = {id for record in records for id in (record.head_id, *record.branches)}
        used: set[str] = set()
        for message in tree.values():
            at: Saved | None = message if message.key in tips or json_of(message) is None else None
            while at is not None and at.id not in used:
                used.add(at.id)
                at = None if at.parent is None else tree[at.parent]
        return {id: message.key or "" for id, message in tree.items() if id not in used}

    def unfinished(self, conversation_id: str, revision: str | None) -> list[dict[str, object]]:
        talk = self._find(conversation_id)
        return [] if talk is None else self.journal_of(conversation_id).read(talk, revision)

    # -- where things are

    def _find(self, conversation_id: str) -> Conversation | None:
        """Return the tree of a conversation; None if there is none."""
        tree = self._store.find(conversation_id)
        if tree is None:
            fork = self._store.items.get(key_of(_FORKS, conversation_id))
            tree = None if fork is None else self._store.find(fork.value.decode())
        return tree

    def _begin(self, record: Record, needed: Iterable[str]) -> Conversation:
        """Return the tree for a new conversation: that of the one it is a fork of, or a new one."""
        tree = self._find(record.forked_from) if needed and record.forked_from is not None else None
        if tree is not None:
            return tree
        about = {"framework": "pydantic-ai"}
        if record.scope is not None:
            about["scope"] = record.scope
        return self._store.ensure(record.conversation_id, metadata=about)

    def _point(self, conversation_id: str, tree: Conversation) -> None:
        """Say where a fork is. It may be said of one that is not there in the end: nothing follows from it."""
        name = key_of(_FORKS, conversation_id)
        if tree.key is not None and tree.key != conversation_id and self._store.items.get(name) is None:
            self._store.items.put(name, tree.key.encode())

    def _stand(self, talk: Conversation, parent: Saved | None) -> Conversation:
        """Return a handle that stands at an entry, or at the beginning."""
        if parent is not None:
            return talk.fork(at=parent)
        root = next(self._store.messages(conversation=talk, newest_first=False), None)
        return talk.fork() if root is None else talk.fork(before=root)

    def _locate(self, entry: str) -> tuple[Conversation, Saved]:
        """Return the message of an entry, and its tree. One that this process has not seen is looked for in all."""
        known = self._trees.get(entry)
        with suppress(NotFound):
            if known is not None:
                talk = self._store.conversation(known)
                return talk, talk.get(keys=[entry])[0]
        for record in self.read_records(None, None):
            tree = self._find(record.conversation_id)
            if tree is not None and (found := tree.get(keys=[entry], missing_ok=True)):
                self._remember(tree, [entry])
                return tree, found[0]
        raise EntryNotFound("entry", [entry])

    def _take(self, talk: Conversation, item: Item | None) -> Any:
        """Return the record that an item holds, and remember where its entries are."""
        if item is None:
            return None
        record = _RECORD.validate_json(item.value)
        self._remember(talk, [id for id in (record.head_id, *record.branches) if id is not None])
        return record

    def _remember(self, talk: Conversation, entries: Iterable[str]) -> None:
        self._trees.update(dict.fromkeys(entries, talk.id))
        while len(self._trees) > _PLACES:
            self._trees.pop(next(iter(self._trees)), None)

    def _purge(self, talk: Conversation) -> None:
        with suppress(NotFound):  # another one was faster
            self._store.purge(talk, reason="user-requested")

    def journal_of(self, conversation_id: str) -> RunJournal:
        return RunJournal(self._store, conversation_id, self._find)


def _encode(entries: list[Entry]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = msgspec.json.decode(
        messages.ModelMessagesTypeAdapter.dump_json([entry.message for entry in entries])
    )
    return found


def decode(found: Sequence[object]) -> list[Any]:
    return messages.ModelMessagesTypeAdapter.validate_json(msgspec.json.encode(found))


def _released(item: Item | None) -> set[str]:
    return set() if item is None else set(msgspec.json.decode(item.value, type=list[str]))


def _put_releases(items: Any, seen: Item | None, released: set[str]) -> None:
    items.put(_RELEASES, msgspec.json.encode(sorted(released)), expect=None if seen is None else seen.revision)
