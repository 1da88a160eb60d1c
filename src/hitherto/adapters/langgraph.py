"""LangGraph: a checkpointer that keeps threads in a store.

    from hitherto.adapters.langgraph import Saver

    graph = builder.compile(checkpointer=Saver(store))

A thread is a conversation of the kind `langgraph`, and its key is the thread's id. The messages of a graph are the
messages of the conversation; the rest of each checkpoint lies beside them. One `put` is one commit. What is kept, and
how, is in `formats.importers._langgraph_records`.
"""

import heapq
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from .._system.task_threads import shared_threads
from ..aio import AsyncStore
from ..conversation import Conversation
from ..errors import Conflict, InvalidArgument, NotFound
from ..formats.importers import _langgraph_records as records
from ..formats.importers._langgraph_records import KIND, Inline, Kept, Listed, Place, Record, TaskWrite, TaskWrites
from ..store import Store
from . import _langgraph_lists as lists
from . import _langgraph_pruning as pruning
from ._langgraph_known import KnownLists, Serialised
from ._langgraph_writing import Handles, Write
from ._opening import Location, import_framework, open_any

__all__ = ["KIND", "Saver"]

TRIED: Final = ">=4.3,<5"

_base = import_framework(
    "langgraph.checkpoint.base",
    "langgraph-checkpoint",
    "langgraph",
    TRIED,
    *("BaseCheckpointSaver", "CheckpointTuple", "WRITES_IDX_MAP", "get_checkpoint_metadata", "writes_sort_key"),
)
_types = import_framework(
    "langgraph.checkpoint.serde.types", "langgraph-checkpoint", "langgraph", TRIED, "_DeltaSnapshot"
)
_Snapshot = vars(_types)["_DeltaSnapshot"]  # the value of a delta channel, whole
_encrypted = import_framework("langgraph.checkpoint.serde.encrypted", "langgraph-checkpoint", "langgraph", TRIED)
_messages = import_framework("langchain_core.messages", "langchain-core", "langgraph", ">=1.4,<2")

_RECENT: Final = 512  # places of checkpoints that are remembered
_ATTEMPTS: Final = 8
_AHEAD: Final = 16  # checkpoints of a listing that are read at a time

Config = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")


class Saver(_base.BaseCheckpointSaver):  # type: ignore[name-defined]  # it may not be installed
    """A checkpointer of LangGraph over a store: sync and async in one."""

    def __init__(self, store: Store | AsyncStore | Location, *, serde: Any = None) -> None:
        super().__init__(serde=serde)
        self.store = open_any(store)
        if self.store.engine.redactor is not None:
            hint = "open it without sanitiser=, and clean what goes into the graph: Sanitiser.clean(text)"
            raise InvalidArgument("a sanitiser cannot clean the bytes of LangGraph's serialiser", hint=hint)
        self._known = KnownLists()
        self._handles = Handles()
        self._recent: dict[tuple[str, str, str], tuple[dict[str, Any], dict[str, Place]]] = {}

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.store.close()

    async def __aenter__(self) -> "Saver":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _in_thread(self.store.close)

    # -- reading

    def get_tuple(self, config: Config) -> Any:
        """Return the checkpoint that a config names, or the newest one of its thread; None if there is none."""
        thread, namespace, checkpoint = _place(config)
        talk = self._find(thread)
        if talk is None:
            return None
        if checkpoint is not None:
            name = records.record_name(namespace, checkpoint)
            item = talk.items.get(name)
        else:
            prefix = records.records_prefix(namespace)
            item = next(talk.items.scan(prefix, reverse=True, limit=1), None)
        if item is None:
            return None
        record, id = records.decode_record(item.value, item.name), records.checkpoint_of(item.name)
        return self._tuple(thread, talk, record, id, is_used=True)

    def list(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """Yield the checkpoints of a thread, or of all threads, the newest first."""
        if limit is not None and limit <= 0:
            return
        found = 0
        for thread, talk, name, value in self._listed(config, before):
            record = records.decode_record(value, name)
            if filter:
                metadata = self._load(record.metadata)
                if any(metadata.get(key) != wanted for key, wanted in filter.items()):
                    continue
            yield self._tuple(thread, talk, record, records.checkpoint_of(name))
            found += 1
            if found == limit:
                return

    def _listed(self, config: Config | None, before: Config | None) -> Iterator[tuple[str, Conversation, str, bytes]]:
        """Yield the thread, the name and the bytes of each record that is asked for, the newest checkpoint first."""
        asked = (config or {}).get("configurable", {})
        end = None if before is None else _base.get_checkpoint_id(before)
        if asked.get("thread_id") is not None:
            talk = self._find(str(asked["thread_id"]))
            talks = [] if talk is None else [talk]
        else:
            talks = list(self._talks())
        one = asked.get("checkpoint_id")
        runs = [self._run(talk, asked.get("checkpoint_ns"), one, end) for talk in talks]
        for _, thread, talk, name, value in heapq.merge(*runs, key=lambda entry: entry[0], reverse=True):
            yield thread, talk, name, value

    def _run(
        self, talk: Conversation, namespace: str | None, checkpoint: str | None, end: str | None
    ) -> Iterator[tuple[tuple[str, str], str, Conversation, str, bytes]]:
        """Yield the records of one thread, the newest first, each with what it is sorted by."""
        thread = talk.metadata.get(records.THREAD) or talk.key or ""
        if namespace is None:
            found = [(records.checkpoint_of(item.name), item) for item in talk.items.scan(records.CHECKPOINTS)]
            entries = iter(sorted(found, key=lambda entry: entry[0], reverse=True))
        else:
            after = None if end is None else records.record_name(namespace, end)
            scan = talk.items.scan(records.records_prefix(namespace), after=after, reverse=True)
            entries = ((records.checkpoint_of(item.name), item) for item in scan)
        for id, item in entries:
            if (checkpoint is None or id == checkpoint) and (end is None or id < end):
                yield (id, thread), thread, talk, item.name, item.value

    def _tuple(self, thread: str, talk: Conversation, record: Record, id: str, *, is_used: bool = False) -> Any:
        checkpoint = self._load(record.checkpoint)
        self._remember(talk, record.namespace, id, checkpoint["channel_versions"], record.places)
        values = {channel: self._value(talk, place, is_used=is_used) for channel, place in record.places.items()}
        parent = None if record.parent is None else _config(thread, record.namespace, record.parent)
        return _base.CheckpointTuple(
            _config(thread, record.namespace, id),
            {**checkpoint, "channel_values": values},
            self._load(record.metadata),
            parent,
            [(task, write.channel, self._value(talk, write.place)) for task, write in self._writes(talk, record, id)],
        )

    def _writes(self, talk: Conversation, record: Record, id: str) -> Sequence[tuple[str, TaskWrite]]:
        """Return the writes of a checkpoint in the order in which they are applied, each with its task."""
        found = []
        for item in talk.items.scan(records.writes_prefix(record.namespace, id)):
            kept = records.decode_writes(item.value, item.name)
            found += [(path, kept.task, write) for path, write in kept.writes]
        found.sort(key=lambda one: _base.writes_sort_key(one[0], one[1], one[2].index))
        return [(task, write) for _, task, write in found]

    def _value(self, talk: Conversation, place: Place, *, is_used: bool = False) -> Any:
        if isinstance(place, Inline):
            return self._load((place.kind, place.data))
        if isinstance(place, Kept):
            return self._load((place.kind, b"".join([talk.items[name] for name in records.part_names(place)])))
        there = self._known.find(talk.id, place)
        typed = [lists.typed_of(message) for message in lists.read(talk, place)] if there is None else there[0]
        found = [self._load(one) for one in typed]
        if is_used:
            path = records.digests(place.before, typed) if there is None else there[1]
            self._known.remember(talk.id, place.before, Serialised(found, typed), path)
        return _Snapshot(found) if place.is_snapshot else found

    def _load(self, typed: records.Typed) -> Any:
        return self.serde.loads_typed(typed)

    def get_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Mapping[str, Any]:
        """Return the writes of these channels on the way to a checkpoint, back to the newest value of each."""
        thread, namespace, checkpoint = _place(config)
        talk = self._find(thread)
        found: dict[str, Any] = {channel: {"writes": []} for channel in channels}
        if talk is None:
            return found
        if checkpoint is None:
            newest = next(talk.items.scan(records.records_prefix(namespace), reverse=True, limit=1), None)
            checkpoint = None if newest is None else records.checkpoint_of(newest.name)
        left = set(channels)
        for id, record in self._ancestors(talk, namespace, checkpoint):
            if not left:
                break
            for task, write in reversed(self._writes(talk, record, id)):
                if write.channel in left:
                    found[write.channel]["writes"].append((task, write.channel, self._value(talk, write.place)))
            for channel in left & record.places.keys():
                found[channel]["seed"] = self._value(talk, record.places[channel])
                left.remove(channel)
        for history in found.values():
            history["writes"].reverse()
        return found

    def _ancestors(self, talk: Conversation, namespace: str, id: str | None) -> Iterator[tuple[str, Record]]:
        """Yield the records that a checkpoint comes from, the nearest first."""
        seen: set[str] = set()
        record = None if id is None else self._record(talk, namespace, id)
        while record is not None and record.parent is not None and record.parent not in seen:
            id = record.parent
            seen.add(id)
            record = self._record(talk, namespace, id)
            if record is not None:
                yield id, record

    def _record(self, talk: Conversation, namespace: str, id: str) -> Record | None:
        item = talk.items.get(records.record_name(namespace, id))
        return None if item is None else records.decode_record(item.value, item.name)

    # -- writing

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: dict[str, Any]) -> Config:
        """Keep a checkpoint: one commit."""
        thread, namespace, parent = _place(config)
        rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        record = Record(
            namespace,
            self.serde.dumps_typed(rest),
            self.serde.dumps_typed(_base.get_checkpoint_metadata(config, metadata)),
            parent,
            {},
        )
        self._try(thread, lambda talk: self._put(talk, record, checkpoint, new_versions))
        return _config(config["configurable"]["thread_id"], namespace, checkpoint["id"])

    def _try(self, thread: str, write: Callable[[Conversation], None]) -> None:
        """Write to a thread, again if it was changed or deleted since we looked."""
        for attempt in range(_ATTEMPTS):
            try:
                return write(self._handles.thread(thread) or self._ensure(thread))
            except (NotFound, Conflict):
                self._handles.forget(thread)
                self._recent.clear()
                if attempt == _ATTEMPTS - 1:
                    raise
        return None

    def _put(self, talk: Conversation, record: Record, checkpoint: Any, new_versions: Mapping[str, Any]) -> None:
        namespace, values, versions = record.namespace, checkpoint["channel_values"], checkpoint["channel_versions"]
        had, earlier = self._before(talk, namespace, record.parent)
        main = None if namespace else _main_channel(values)
        write = Write(self.store, talk, namespace, self._handles)
        # A channel that keeps its version keeps its value, also a delta channel that does not give it every time.
        places = {
            channel: earlier[channel]
            for channel, version in versions.items()
            if channel in earlier and channel not in new_versions and had.get(channel) == version
        }
        for channel, value in values.items():
            if channel in places:
                continue
            there = earlier.get(channel)
            if (messages := self._messages_in(value)) is not None:
                flow = records.MAIN if channel == main else records.SIDE
                done = self._known.serialise(talk.id, messages, self.serde.dumps_typed)
                listed = write.add_list(done, flow, there if isinstance(there, Listed) else None)
                places[channel] = (
                    listed if value is messages else Listed(listed.key, listed.count, listed.before, is_snapshot=True)
                )
            else:
                places[channel] = write.add_value(self.serde.dumps_typed(value))
        record = Record(namespace, record.checkpoint, record.metadata, record.parent, places)
        write.commit(records.record_name(namespace, checkpoint["id"]), records.encode(record))
        self._remember(talk, namespace, checkpoint["id"], dict(versions), places)
        for done, before, path in write.lists_seen:
            self._known.remember(talk.id, before, done, path)

    def _messages_in(self, value: Any) -> Sequence[Any] | None:
        """Return the messages that a value is a list of; None if it is something else. An encrypting serialiser wants
        nothing of it to be readable."""
        if isinstance(value, _Snapshot):
            value = value.value
        if type(value) is not list or not value or isinstance(self.serde, _encrypted.EncryptedSerializer):
            return None
        return value if all(isinstance(one, _messages.BaseMessage) for one in value) else None

    def _before(
        self, talk: Conversation, namespace: str, parent: str | None
    ) -> tuple[Mapping[str, Any], Mapping[str, Place]]:
        """Return the versions of the channels in the checkpoint before, and the places of their values."""
        if parent is None:
            return {}, {}
        known = self._recent.get((talk.id, namespace, parent))
        if known is not None:
            return known
        record = self._record(talk, namespace, parent)
        return ({}, {}) if record is None else (self._load(record.checkpoint)["channel_versions"], record.places)

    def _remember(
        self, talk: Conversation, namespace: str, id: str, versions: dict[str, Any], places: dict[str, Place]
    ) -> None:
        self._recent[talk.id, namespace, id] = dict(versions), places
        while len(self._recent) > _RECENT:
            self._recent.pop(next(iter(self._recent)), None)

    def put_writes(self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Keep what a task has written: one commit."""
        thread, namespace, checkpoint = _place(config)
        if checkpoint is None:
            hint = "config['configurable']['checkpoint_id']"
            raise InvalidArgument("the config of a write names no checkpoint", hint=hint)
        name = records.writes_name(namespace, checkpoint, task_id)
        typed = [
            (_base.WRITES_IDX_MAP.get(channel, index), channel, self.serde.dumps_typed(value))
            for index, (channel, value) in enumerate(writes)
        ]

        def write(talk: Conversation) -> None:
            item = talk.items.get(name)
            there = () if item is None else records.decode_writes(item.value, name).writes
            kept = {write.index: (path, write) for path, write in there}
            new = Write(self.store, talk, namespace, self._handles)
            for index, channel, value in typed:
                if index < 0 or index not in kept:  # special ones are replaced; others were written before
                    kept[index] = task_path, TaskWrite(index, channel, new.add_value(value))
            data = records.encode(TaskWrites(task_id, tuple(kept.values())))
            new.commit(name, data, expect=None if item is None else item.revision)

        self._try(thread, write)

    def get_next_version(self, current: Any, channel: None) -> str:  # noqa: ARG002  # the second one is LangGraph's
        """Return the next version of a channel: larger than the current one, and unlike that of any other branch."""
        number, width = 0, 10
        if isinstance(current, str):
            head = current.split(".")[0]
            number, width = int(head), len(head)
        elif current is not None:
            number = int(current)
        return f"{number + 1:0{width}}.{token_hex(4)}"

    # -- threads

    def _find(self, thread: str) -> Conversation | None:
        return self.store.find(records.key_of_thread(thread), kind=KIND)

    def _ensure(self, thread: str) -> Conversation:
        key = records.key_of_thread(thread)
        talk = self.store.ensure(key, kind=KIND, metadata=None if key == thread else {records.THREAD: thread})
        self._handles.keep_thread(thread, talk)
        return talk

    def _talks(self) -> Iterator[Conversation]:
        cursor = None
        while True:
            page = self.store.conversations(kind=KIND, limit=200, cursor=cursor)
            for info in page.items:
                yield self.store.conversation(info)
            cursor = page.next_cursor
            if cursor is None:
                return

    def delete_thread(self, thread_id: str) -> None:
        """Destroy a thread with all its checkpoints."""
        talk = self._find(str(thread_id))
        if talk is not None:
            self.store.purge(talk, reason="user-requested")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to a new one."""
        talk = self._find(str(source_thread_id))
        if talk is None:
            raise NotFound("thread", [str(source_thread_id)])
        target = str(target_thread_id)
        key = records.key_of_thread(target)
        copy = talk.copy_to(key)
        if key != target or records.THREAD in copy.metadata:
            copy.describe({**copy.metadata, records.THREAD: target})

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints and writes that these runs have made, in all threads."""
        runs = {str(id) for id in run_ids}
        for talk in list(self._talks()) if runs else []:
            all_ = pruning.read_all(talk)
            kept = {place for place, record in all_.items() if self._load(record.metadata).get("run_id") not in runs}
            if len(kept) < len(all_):
                pruning.keep_only(self.store, talk, kept)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the latest checkpoint of each namespace, and those that delta channels are rebuilt from. The strategy
        `"delete"` destroys the threads."""
        if isinstance(thread_ids, str):
            raise InvalidArgument("thread_ids is one text", hint="a list of thread ids, even of one")
        if strategy not in ("keep_latest", "delete"):
            raise InvalidArgument(f"no such strategy: {strategy!r:.40}", hint='"keep_latest" or "delete"')
        for thread in thread_ids:
            talk = self._find(str(thread))
            if talk is None:
                continue
            if strategy == "delete":
                self.store.purge(talk, reason="user-requested")
            else:
                pruning.keep_only(self.store, talk, pruning.choose_latest(pruning.read_all(talk), self._load))

    # -- the same, awaited

    async def aget_tuple(self, config: Config) -> Any:
        return await _in_thread(self.get_tuple, config)

    async def alist(
        self,
        config: Config | None,
        *,
        filter: dict[str, Any] | None = None,
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Any]:
        found = self.list(config, filter=filter, before=before, limit=limit)
        while some := await _in_thread(_take, found):
            for one in some:
                yield one

    async def aput(self, config: Config, checkpoint: Any, metadata: Any, new_versions: dict[str, Any]) -> Config:
        return await _in_thread(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await _in_thread(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        await _in_thread(self.delete_thread, thread_id)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await _in_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await _in_thread(self.delete_for_runs, run_ids)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await _in_thread(partial(self.prune, thread_ids, strategy=strategy))

    async def aget_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Mapping[str, Any]:
        return await _in_thread(partial(self.get_delta_channel_history, config=config, channels=channels))


def _place(config: Config) -> tuple[str, str, str | None]:
    """Return the thread, the namespace and the checkpoint that a config names."""
    asked = config["configurable"]
    if asked.get("thread_id") is None:
        raise InvalidArgument("the config names no thread", hint='config={"configurable": {"thread_id": "…"}}')
    return str(asked["thread_id"]), asked.get("checkpoint_ns") or "", asked.get("checkpoint_id") or None


def _config(thread: object, namespace: str, checkpoint: str) -> Config:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": checkpoint}}


def _main_channel(values: Mapping[str, Any]) -> str | None:
    """Return the channel whose messages are the conversation: `messages`, or the first one that is a list of them."""
    if "messages" in values:
        return "messages"
    for channel, value in values.items():
        if type(value) is list and value and isinstance(value[0], _messages.BaseMessage):
            return channel
    return None


def _take(found: Iterator[Any]) -> list[Any]:
    return list(islice(found, _AHEAD))


async def _in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    return await shared_threads().run(function, *args, **kwargs)
