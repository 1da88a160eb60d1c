"""The values that every format reads and writes: a conversation outside of any store.

A reader turns a file into these values and knows nothing of stores; a writer does the reverse. `_importing` puts them
into a store, once for all formats: it chooses ids, and skips messages that the store has.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from .._engine.record_items import About
from ..backend import CHAT
from ..errors import Hint, InvalidArgument
from ..keys import Key
from ..model import Message, Setup
from ..snapshots import Unreadable

HEAD = 1 << 16  # bytes of a file that a format may look at to recognise it


class PortableMessage(Struct, frozen=True, kw_only=True):
    """A message outside of a store. Its position is given by ids of any form, which are unique within the
    conversation."""

    id: str
    message: Message  # its own `parent` is not used
    parent: str | None = None
    link: str | None = None  # on a root: the message that it continues (compaction) or serves (sub-agent)
    main: bool = True
    created_us: int = 0
    setup: int = 0  # which of the conversation's setups it was made with, from 1; 0: none
    origin: str | None = None  # conversation/message it was copied from, by detach
    format: str | None = None  # of the file that gave it its id, if that is another one than this
    also: tuple[str, ...] = ()  # ids of further records of the file that it was made of; imported by identity only
    continues: tuple[str, int] | None = (
        None  # on a root: the file, not among these, and the line of it that it stands before
    )


class SourceRecord(Struct, frozen=True, kw_only=True):
    """Something in a file that is no message: kept beside the conversation, and counted by its type."""

    type: str
    data: object  # JSON
    id: str | None = None  # unique within the conversation; without one its content decides
    known: bool = False  # the importer knows this type: bookkeeping of the program


class Waiting(Struct, frozen=True):
    """The end of a file that is being written: not whole yet, and no failure."""

    name: str
    reason: str


class Place(Struct, frozen=True):
    """The message at which the thread of a file stands after a line. Other files may go on from there."""

    file: str
    line: int
    message: str


class PortablePartial(Struct, frozen=True, kw_only=True):
    """The part that arrived of an incomplete answer. It is not part of the tree."""

    parent: str  # the message that it answers
    messages: tuple[Message, ...]
    at_us: int = 0


class PortableItem(Struct, frozen=True):
    """A named value beside the messages."""

    name: str
    value: bytes


class PortableConversation(Struct, frozen=True, kw_only=True):
    """A whole conversation outside of a store: the tree, with all branches. Parents stand before their children."""

    id: str  # a UUID, or any other text, which then becomes one
    messages: tuple[PortableMessage, ...] = ()
    title: str = ""
    key: str | None = None
    project: str | None = None
    metadata: dict[str, str] = {}
    setups: tuple[Setup, ...] = ()
    setup: int = 0  # the current one of them; 0: none
    setup_at: int = 0  # it was set before the message of this place in `messages`
    opening: str | None = None
    head: str | None = None  # None: the newest message of the main flow; empty: before the first
    held: bool = False
    created_us: int = 0  # 0: as old as its first message
    partials: tuple[PortablePartial, ...] = ()
    record: About = About()  # the additional data of a record
    expires_us: int | None = None  # an expiry of its own
    kind: str = CHAT
    items: tuple[PortableItem, ...] = ()
    upto: str | None = None  # the message that a snapshot ends with, by its id where it was taken
    by_id: bool = False  # the same message has the same id in every file: imported by identity (`_by_identity`)
    aliases: tuple[str, ...] = ()  # other ids that mean the same tree, such as that of the session it was forked from
    absent: tuple[str, ...] = ()  # those of the aliases that stand for files which are not among these
    records: tuple[SourceRecord, ...] = ()  # imported by identity only
    places: tuple[Place, ...] = ()  # imported by identity only


Found = PortableConversation | Unreadable | Waiting  # what a reader yields


class Source(Struct, frozen=True):
    """A file or a directory whose format is to be recognised."""

    path: Path
    is_directory: bool
    head: bytes  # the first bytes of the file
    tables: frozenset[str] = frozenset()  # of a SQLite file


class Format(Protocol):
    """A file format. A module with these names is one, too."""

    @property
    def name(self) -> str:
        """The name that people type: "jsonl"."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The suffixes of its files: (".jsonl",)."""
        ...

    @property
    def writes(self) -> bool:
        """True if it can be written as well as read."""
        ...

    def recognises(self, source: Source) -> str | None:
        """Return the evidence in the content that it is this format, in words, or None. Never raises."""
        ...

    def read(self, path: Path, key: Key | None) -> Iterator[Found]:
        """Yield the conversations in a file, and an `Unreadable` for each part that cannot be read. Raises
        `InvalidArgument` or `Damaged` if the file is not in this format at all, and `KeyUnavailable` without the key
        that it needs."""
        ...

    def write(self, talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
        """Write a new file completely or not at all. Returns the number of conversations. Raises `AlreadyExists` if the
        file exists."""
        ...


def not_written(name: str) -> InvalidArgument:
    """Return the error of a format that can only be read."""
    hint = Hint("format-not-written", "hitherto.formats.names(writable=True)")
    return InvalidArgument(f"the format {name} is read, not written", hint=hint)
