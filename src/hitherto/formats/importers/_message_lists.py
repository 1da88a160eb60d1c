"""Lists of messages: histories that a framework or an API writes down, one message after the other.

They have no ids. A message is named by its content and by what stands before it, and a conversation by its first
answer. So a list that has grown adds its tail, and two lists that begin alike are branches of one conversation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

from msgspec import Struct
from msgspec.structs import replace

from ...model import Message
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, chain_id, parts
from .._types import Found, PortableConversation, PortableMessage, SourceRecord
from ._fields import Fields, Setups, objects
from ._json_elements import values_in
from ._turns import conversation_name, title_of

_AT_MOST = 1000  # messages that are read to find the first answer


class ListImporter(Importer):
    """An importer of lists of messages."""

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        for name in names:
            for found in lists_in(files, name, self.is_message):
                if isinstance(found, Unreadable):
                    yield found
                    continue
                problems: list[Unreadable] = []
                setups = Setups()
                rest = iter(found[1])
                first = list(islice(rest, 1))
                id = "".join(self.conversation_of(one) for one in first if isinstance(one, dict))
                entries = self.entries(_readable(chain(first, rest), problems), setups)
                talk = PortableConversation(by_id=True, id=id, metadata={"source": self.name})
                yield from read_list(talk, entries, setups)
                yield from problems

    def is_message(self, found: Fields) -> bool:
        """Return True if an object is a message."""
        raise NotImplementedError

    def conversation_of(self, first: Fields) -> str:  # noqa: ARG002  # for those that have one
        """Return the id of the conversation that the first message names."""
        return ""

    def entries(self, listed: Iterable[Fields], setups: Setups) -> "Iterator[Entry | SourceRecord]":
        """Yield the messages of a list."""
        raise NotImplementedError


def _readable(listed: Iterable[Fields | Unreadable], problems: list[Unreadable]) -> Iterator[Fields]:
    for one in listed:
        if isinstance(one, Unreadable):
            problems.append(one)
        else:
            yield one


class Entry(Struct, frozen=True):
    """A message of a list."""

    message: Message
    created_us: int = 0
    setup: int = 0


def lists_in(
    files: Files, name: str, is_message: Callable[[Fields], bool]
) -> Iterator[tuple[str, Iterable[Fields | Unreadable], Fields] | Unreadable]:
    """Yield the lists in a file, where each stands, and the object that it is a field of. A file is a list of messages,
    a list of such lists, or objects with a list in `messages`."""
    found = values_in(files, name)
    for place, value in found:
        if isinstance(value, Unreadable):
            yield value
        elif isinstance(value, list):
            yield place, objects(value), {}
        elif isinstance(value, dict) and is_message(value):
            yield files.label(name), chain([value], _messages(found, is_message)), {}
        elif isinstance(value, dict) and isinstance(value.get("messages"), list):
            yield place, objects(value["messages"]), value
        else:
            yield Unreadable(place, "it is no list of messages")


def _messages(
    found: Iterable[tuple[str, object]], is_message: Callable[[Fields], bool]
) -> Iterator[Fields | Unreadable]:
    for place, value in found:
        if isinstance(value, dict) and is_message(value):
            yield value
        else:
            yield value if isinstance(value, Unreadable) else Unreadable(place, "it is no message")


def read_list(
    talk: PortableConversation, entries: Iterable[Entry | SourceRecord], setups: Setups
) -> Iterator[PortableConversation]:
    """Yield a conversation of these messages, in parts. It gets an id and a title if it has none."""
    named = _named(entries)
    first: list[PortableMessage | SourceRecord] = []
    for one in named:
        first.append(one)
        if len(first) == _AT_MOST or (isinstance(one, PortableMessage) and one.message.role == "assistant"):
            break
    messages = [one for one in first if isinstance(one, PortableMessage)]
    if messages:
        whole = replace(talk, id=talk.id or conversation_name(messages), title=talk.title or title_of(messages))
        for part in parts(whole, chain(first, named)):
            yield replace(part, setups=setups.all)


def _named(entries: Iterable[Entry | SourceRecord]) -> Iterator[PortableMessage | SourceRecord]:
    above: str | None = None
    for one in entries:
        if isinstance(one, SourceRecord):
            yield one
            continue
        id = chain_id(above, one.message)
        yield PortableMessage(id=id, parent=above, message=one.message, created_us=one.created_us, setup=one.setup)
        above = id
