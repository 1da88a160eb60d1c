"""What is kept of a LangGraph checkpoint, by the adapter and by the importer: items beside the messages of its thread.

A thread is a conversation. A checkpoint is one item, its **record**: the checkpoint without the values of its channels,
its metadata, its parent, and for each channel the **place** of its value. Small values lie in the record. Others have
items of their own, and checkpoints in which the value is the same share it. The writes of a task are one item.

    k/<namespace>/<checkpoint>          a record
    w/<namespace>/<checkpoint>/<task>   the writes of a task
    v/<name>/<part>                     a value

Values are bytes as LangGraph's serialiser made them, with the name that it gives their type. Nothing here loads
LangGraph.

A list of LangChain messages is a path in the tree of the conversation: each message below the one before. So a version
of the list costs what is new in it, an edited or branching history is a branch, and channels, subgraphs and branches
share what they begin with. The key of a message is a digest of the path to it: of the message and of all before it.
What the main channel of a graph gathers is on the main flow. The key of a message beside it has another first letter,
so that a subgraph's messages do not keep those of the graph off the main flow.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b, sha256
from typing import Final

import msgspec
from msgspec import Struct

from ...errors import Damaged

KIND: Final = "langgraph"
THREAD: Final = "thread_id"  # in the metadata of a thread whose id cannot be its key
CHECKPOINTS: Final = "k/"
WRITES: Final = "w/"
VALUES: Final = "v/"

MAIN: Final = "m"
SIDE: Final = "s"
ROOT: Final = b""  # the digest of no messages

SMALL: Final = 256  # bytes of a value that lies in the record
PART: Final = 4 * 2**20  # bytes of a part of a value

_LONGEST: Final = 500  # bytes of a key: databases index no long values
_HASHED: Final = "sha256:"
_DIGEST: Final = 16  # bytes of a digest
_LONG: Final = 240  # bytes of a part of a name; a longer one is named by its hash

Typed = tuple[str, bytes]  # a value as the serialiser made it: the name of its type, and bytes


class Inline(Struct, frozen=True, array_like=True, tag="i", gc=False):
    """A value that lies in the record."""

    kind: str
    data: bytes


class Kept(Struct, frozen=True, array_like=True, tag="v", gc=False):
    """A value with items of its own: its parts, in this number."""

    kind: str
    name: str
    parts: int


class Listed(Struct, frozen=True, array_like=True, tag="l", gc=False):
    """A list of messages: the last `count` of the path from a root of the tree to the message with this key."""

    key: str
    count: int
    before: bytes  # the digest of the path before the first of them
    is_snapshot: bool = False  # the list is the value of a snapshot of a delta channel


Place = Inline | Kept | Listed


class Record(Struct, frozen=True, array_like=True):
    """A checkpoint without the values of its channels."""

    namespace: str
    checkpoint: Typed
    metadata: Typed
    parent: str | None
    places: dict[str, Place]


class TaskWrite(Struct, frozen=True, array_like=True, gc=False):
    """A pending write of a task."""

    index: int
    channel: str
    place: Inline | Kept


class TaskWrites(Struct, frozen=True, array_like=True):
    """The pending writes of a task. A write may be put again under another path, so each has its own."""

    task: str
    writes: tuple[tuple[str, TaskWrite], ...]  # the path of the task, and the write


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(Record)
_writes = msgspec.msgpack.Decoder(TaskWrites)


def encode(value: Record | TaskWrites) -> bytes:
    return _encoder.encode(value)


def decode_record(data: bytes, name: str) -> Record:
    try:
        return _records.decode(data)
    except msgspec.MsgspecError as error:
        raise Damaged(f"item {name!r:.80} is no checkpoint as this version writes them: {error}") from None


def decode_writes(data: bytes, name: str) -> TaskWrites:
    try:
        return _writes.decode(data)
    except msgspec.MsgspecError as error:
        raise Damaged(f"item {name!r:.80} holds no writes as this version writes them: {error}") from None


def _escape(part: str) -> str:
    """Return a part of a name without slashes, and not too long."""
    found = part.replace("%", "%25").replace("/", "%2F")
    data = found.encode("utf-8", "surrogatepass")
    return found if len(data) <= _LONG else f"%{blake2b(data, digest_size=16).hexdigest()}"


def records_prefix(namespace: str) -> str:
    """Return how the names of the records of a namespace begin. They are in the order of their checkpoints' ids."""
    return f"{CHECKPOINTS}{_escape(namespace)}/"


def record_name(namespace: str, checkpoint: str) -> str:
    return f"{records_prefix(namespace)}{checkpoint}"


def checkpoint_of(name: str) -> str:
    """Return the id of the checkpoint that a record with this name is of."""
    return name.split("/", 2)[2]


def writes_prefix(namespace: str, checkpoint: str) -> str:
    return f"{WRITES}{_escape(namespace)}/{_escape(checkpoint)}/"


def writes_name(namespace: str, checkpoint: str, task: str) -> str:
    return f"{writes_prefix(namespace, checkpoint)}{_escape(task)}"


def part_names(kept: Kept) -> list[str]:
    return [f"{VALUES}{kept.name}/{part:04}" for part in range(kept.parts)]


def kept_in(places: Iterable[Place]) -> Iterator[str]:
    """Yield the names of the items that these places name."""
    for place in places:
        if isinstance(place, Kept):
            yield from part_names(place)


# -- threads, lists and values


def key_of_thread(thread: str) -> str:
    """Return the key of the conversation of a thread: its id, if that can be a key, or a hash of it."""
    data = thread.encode("utf-8", "surrogatepass")
    if thread.isprintable() and len(data) <= _LONGEST and not thread.startswith(_HASHED):
        return thread
    return _HASHED + sha256(data).hexdigest()


def digests(before: bytes, elements: Sequence[Typed]) -> list[bytes]:
    """Return the digest of the path to each element of a list."""
    found: list[bytes] = []
    last = before
    for kind, data in elements:
        last = blake2b(b"%b%b\0%b" % (last, kind.encode(), data), digest_size=_DIGEST).digest()
        found.append(last)
    return found


def key_of(flow: str, digest: bytes) -> str:
    """Return the key of the message that a path ends with."""
    return flow + digest.hex()


def subagent_of(namespace: str) -> tuple[str, str]:
    """Return the name and the run of the subgraph that a namespace is of: as if it were a sub-agent."""
    name, _, run = namespace.rpartition("|")[2].partition(":")
    return name.replace(":", "_") or "graph", run.replace(":", "_") or "0"


def place_value(typed: Typed, name: str, items: dict[str, bytes]) -> Inline | Kept:
    """Return the place of a value. One that is too large for the record is added to the items, under this name."""
    kind, data = typed
    if len(data) <= SMALL:
        return Inline(kind, data)
    kept = Kept(kind, name, -(-len(data) // PART))
    for part, own in enumerate(part_names(kept)):
        items[own] = data[part * PART : (part + 1) * PART]
    return kept
