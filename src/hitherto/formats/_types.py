"""What every format reads into and writes from: a conversation as a value, outside of any store.

A reader turns a file into these values and knows nothing of stores; a writer does the reverse. What it takes to put
them into a store, which ids are taken, what is there already, is decided once, for all formats, by `_importing`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from .._engine.record_items import About
from ..errors import Hint, InvalidArgument
from ..keys import Key
from ..model import Message, Setup
from ..snapshots import Unreadable

HEAD = 4096  # bytes of a file that a format may look at to recognise it


class PortableMessage(Struct, frozen=True, kw_only=True):
    """A message on its way. Its place is told by ids that hold inside the conversation, whatever they look like."""

    id: str
    message: Message  # its own `parent` is not used
    parent: str | None = None
    link: str | None = None  # on a root: the message that it continues (compaction) or serves (sub-agent)
    main: bool = True
    created_us: int = 0
    setup: int = 0  # which of the conversation's setups it was made with, from 1; 0: none
    origin: str | None = None  # conversation/message it was copied from, by detach
    format: str | None = None  # of the file that gave it its id, if that is another one than this


class PortablePartial(Struct, frozen=True, kw_only=True):
    """What had come of an answer that did not arrive whole: outside the tree, and on its way as well."""

    parent: str  # the message that it answers
    messages: tuple[Message, ...]
    at_us: int = 0


class PortableConversation(Struct, frozen=True, kw_only=True):
    """A whole conversation on its way: the tree, with all branches. Parents stand before their children."""

    id: str  # a UUID, or any other text, which then becomes one
    messages: tuple[PortableMessage, ...] = ()
    title: str = ""
    key: str | None = None
    project: str | None = None
    metadata: dict[str, str] = {}
    setups: tuple[Setup, ...] = ()
    setup: int = 0  # which of them is in force; 0: none
    setup_at: int = 0  # it was set before the message of this place in `messages`
    opening: str | None = None
    head: str | None = None  # None: the newest message of the main flow
    held: bool = False
    created_us: int = 0  # 0: as old as its first message
    partials: tuple[PortablePartial, ...] = ()
    record: About = About()  # what lies beside it, if it is a record
    expires_us: int | None = None  # an expiry of its own
    upto: str | None = None  # the message that a snapshot ends with, by its id where it was taken


class Source(Struct, frozen=True):
    """A file, or a directory, that is to be recognised."""

    path: Path
    is_directory: bool
    head: bytes  # the first bytes of the file


class Format(Protocol):
    """One format. A module is one too, if it has these names."""

    @property
    def name(self) -> str:
        """As people type it: "jsonl"."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What the names of its files end in: (".jsonl",)."""
        ...

    @property
    def writes(self) -> bool:
        """Can it be written as well as read?"""
        ...

    def recognises(self, source: Source) -> str | None:
        """What in the content shows that it is this format, in words; None if it is not. Never raises."""
        ...

    def read(self, path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
        """The conversations in a file, one after the other, and what could not be read. `InvalidArgument` or `Damaged`
        for what is not this format at all, `KeyUnavailable` without the key that it takes."""
        ...

    def write(self, talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
        """Write a new file; `AlreadyExists` if there is one. All of it or nothing is there afterwards. Returns how
        many conversations were written."""
        ...


def not_written(name: str) -> InvalidArgument:
    """For formats that are only read."""
    hint = Hint("format-not-written", "hitherto.formats.names(writable=True)")
    return InvalidArgument(f"the format {name} is read, not written", hint=hint)
