"""LangGraph: the file of `SqliteSaver`, with all checkpoints, so that the threads go on with the adapter's saver.

The file has each checkpoint whole: its messages again and again. Here a message is kept once, as the saver of
`hitherto.adapters.langgraph` keeps it (`_langgraph_records`). Values stay the bytes that LangGraph's serialiser made,
and are cut out of the checkpoint without being made into objects, so LangGraph need not be installed, and no code of
the file runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Final

import apsw
import msgspec
from msgspec import Raw
from msgspec.msgpack import Ext
from msgspec.structs import replace

from ...errors import HithertoError, InvalidArgument
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, clean_text, time_us
from .._sqlite_file import columns_of, open_foreign
from .._types import Found, PortableConversation, PortableItem, PortableMessage, Source
from . import _langgraph_records as records
from ._langchain_messages import to_message
from ._langgraph_records import Listed, Place, Record, TaskWrite, TaskWrites, Typed

_PYDANTIC: Final = frozenset({4, 5})  # codes of extensions: a model, as its module, its class and its fields
_KINDS: Final = frozenset({"human", "ai", "system", "tool", "function", "chat"})
_THREADS = "SELECT DISTINCT thread_id FROM checkpoints ORDER BY thread_id"
_CHECKPOINTS = """
    SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints
    WHERE thread_id = ? ORDER BY checkpoint_id, checkpoint_ns
"""
_WRITES = """
    SELECT checkpoint_ns, checkpoint_id, task_id, idx, channel, type, value, {path} FROM writes
    WHERE thread_id = ? ORDER BY checkpoint_ns, checkpoint_id, task_id, idx
"""

Fields = Mapping[str, object]


class LangGraph(Importer):
    name = "langgraph"
    title = "LangGraph"
    suffixes = (".sqlite", ".db")

    def recognises(self, source: Source) -> str | None:
        if {"checkpoints", "writes"} <= source.tables:
            return "tables of LangGraph's SqliteSaver: checkpoints and writes"
        return None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        for name in names:
            try:
                with files.local(name) as path:
                    yield from _read(path)
            except HithertoError as error:
                yield Unreadable(files.label(name), str(error))


FORMAT = LangGraph()


def _read(path: Path) -> Iterator[Found]:
    with open_foreign(path, "LangGraph") as file:
        file.execute("BEGIN")
        needed = {"thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id", "type", "checkpoint"}
        if not needed <= set(columns_of(file, "checkpoints")) or not columns_of(file, "writes"):
            raise InvalidArgument(f"{path.name!r:.100} has no checkpoints as LangGraph's SqliteSaver writes them")
        for (thread,) in file.execute(_THREADS).fetchall():
            one = _Thread(clean_text(thread))
            yield from one.read(file)
            yield one.portable()


class _Thread:
    """One thread on its way: its messages, and the items with everything else."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._messages: dict[str, PortableMessage] = {}  # by key
        self._items: dict[str, bytes] = {}
        self._values: dict[tuple[str, bytes], Place] = {}  # by channel and digest
        self._head: str | None = None

    def read(self, file: apsw.Connection) -> Iterator[Unreadable]:
        """Read the rows of this thread. Yields those that cannot be read."""
        for namespace, id, parent, kind, data, metadata in file.execute(_CHECKPOINTS, (self._id,)):
            try:
                self._add(str(namespace), str(id), parent, (str(kind), bytes(data)), metadata)
            except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, InvalidArgument) as error:
                reason = str(error) if isinstance(error, InvalidArgument) else "it is no checkpoint of LangGraph"
                yield Unreadable(f"thread {self._id:.100}, checkpoint {id!s:.100}", reason)
        path = "task_path" if "task_path" in columns_of(file, "writes") else "''"
        tasks: dict[tuple[str, str, str], list[tuple[str, TaskWrite]]] = {}
        for namespace, id, task, index, channel, kind, data, place in file.execute(
            _WRITES.format(path=path), (self._id,)
        ):
            typed = str(kind), bytes(data or b"")
            kept = records.place_value(typed, _name_of(namespace, id, task, index), self._items)
            one = str(place or ""), TaskWrite(int(index), str(channel), kept)
            tasks.setdefault((str(namespace), str(id), str(task)), []).append(one)
        for (namespace, id, task), writes in tasks.items():
            self._items[records.writes_name(namespace, id, task)] = records.encode(TaskWrites(task, tuple(writes)))

    def portable(self) -> PortableConversation:
        key = records.key_of_thread(self._id)
        more = {} if key == self._id else {records.THREAD: self._id}
        return PortableConversation(
            id=f"langgraph:{self._id}",
            key=key,
            kind=records.KIND,
            metadata={"source": FORMAT.name, **more},
            messages=tuple(self._messages.values()),
            items=tuple(PortableItem(name, value) for name, value in self._items.items()),
            head=self._head,
        )

    def _add(self, namespace: str, id: str, parent: object, typed: Typed, metadata: object) -> None:
        kind, data = typed
        codec = _CODECS.get(kind)
        if codec is None:
            raise InvalidArgument(
                f"it is sealed by the program, or written as {kind:.40}, which only the program reads"
            )
        parts = codec.decode(data, type=dict[str, Raw])
        values = codec.decode(parts.pop("channel_values", Raw(codec.encode({}))), type=dict[str, Raw])
        at = time_us(codec.decode(parts["ts"]) if "ts" in parts else None)
        lists = {channel: found for channel, raw in values.items() if (found := _elements_of(kind, bytes(raw)))}
        main = "messages" if "messages" in values else next(iter(lists), None)
        places: dict[str, Place] = {}
        for channel, raw in values.items():
            is_main = not namespace and channel == main
            listed = self._add_list(lists[channel], namespace, at, is_main=is_main) if channel in lists else None
            places[channel] = listed or self._add_value(namespace, id, channel, (kind, bytes(raw)))
        about: object = msgspec.json.decode(metadata) if isinstance(metadata, (bytes, str)) else {}
        above = None if parent is None else str(parent)
        written = "msgpack", msgspec.msgpack.encode(about)
        record = Record(namespace, (kind, codec.encode(parts)), written, above, places)
        self._items[records.record_name(namespace, id)] = records.encode(record)

    def _add_value(self, namespace: str, id: str, channel: str, typed: Typed) -> Place:
        known = channel, blake2b(typed[1], digest_size=16).digest()
        if known not in self._values:
            self._values[known] = records.place_value(typed, _name_of(namespace, id, channel), self._items)
        return self._values[known]

    def _add_list(self, elements: Sequence[Typed], namespace: str, at: int, *, is_main: bool) -> Listed | None:
        """Add the messages of a list that are new; None if one of its elements is no message."""
        keys: list[str] = []
        for digest in records.digests(records.ROOT, elements):
            key = records.key_of(records.MAIN, digest)
            is_shared = is_main or ((not keys or keys[-1].startswith(records.MAIN)) and key in self._messages)
            keys.append(key if is_shared else records.key_of(records.SIDE, digest))
        fields = {n: _fields_of(*elements[n]) for n, key in enumerate(keys) if key not in self._messages}
        known = {n: found for n, found in fields.items() if found is not None}
        if len(known) < len(fields):
            return None
        for n, found in known.items():
            key, typed = keys[n], elements[n]
            message = to_message(found, key, list(typed))
            if namespace:
                message = replace(message, label="subagent:{}:{}".format(*records.subagent_of(namespace)))
            self._messages[key] = PortableMessage(
                id=key,
                message=message,
                parent=keys[n - 1] if n else None,
                main=key.startswith(records.MAIN),
                created_us=at,
            )
        if is_main:
            self._head = keys[-1]
        return Listed(keys[-1], len(keys), records.ROOT)


def _name_of(*parts: object) -> str:
    """Return the name of a value's items: the same for every import of a file."""
    return blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


# -- what LangGraph's serialiser made

_CODECS: Final = {"msgpack": msgspec.msgpack, "json": msgspec.json}


def _elements_of(kind: str, data: bytes) -> list[Typed] | None:
    """Return the elements of a list that begins with a message; None for any other value."""
    try:
        elements = _CODECS[kind].decode(data, type=list[Raw])
    except msgspec.MsgspecError:
        return None
    typed = [(kind, bytes(raw)) for raw in elements]
    return typed if typed and _fields_of(*typed[0]) is not None else None


def _fields_of(kind: str, data: bytes) -> Fields | None:
    """Return the fields of a message; None for any other value."""
    value, fields = _CODECS[kind].decode(data), None
    if isinstance(value, Ext) and value.code in _PYDANTIC:
        model = msgspec.msgpack.decode(value.data)
        fields = model[2] if isinstance(model, list) and len(model) > 2 else None
    elif isinstance(value, dict) and value.get("type") == "constructor" and "lc" in value:
        fields = value.get("kwargs")
    if not isinstance(fields, dict) or "content" not in fields:
        return None
    said = fields.get("type")
    plain = said.removesuffix("MessageChunk").lower() if isinstance(said, str) else ""
    return fields if plain in _KINDS else None
