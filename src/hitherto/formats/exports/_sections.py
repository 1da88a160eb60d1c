"""Puts a conversation into reading order: the thread that ends at the head, then the other branches.

Every message appears once. A branch is a section of its own that names the message after which it begins. So are side
conversations, and the messages before a compaction.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from ...attachment import Attachment
from ...model import Block, Setup, to_datetime
from .._types import PortableConversation, PortableMessage


class Section(Struct, frozen=True):
    """A run of messages, each the child of the one before it. `after` is the message that the first one answers or
    continues."""

    title: str
    after: str | None
    messages: tuple[PortableMessage, ...]
    is_thread: bool = False  # it is the thread that ends at the head


def thread(talk: PortableConversation) -> tuple[PortableMessage, ...]:
    """Return the messages from the root to the head."""
    by_id = {said.id: said for said in talk.messages}
    newest = next((said.id for said in reversed(talk.messages) if said.main), None)
    at = newest if talk.head is None else talk.head or None
    path: list[PortableMessage] = []
    while at is not None:
        path.append(by_id[at])
        at = by_id[at].parent
    return tuple(reversed(path))


def upto(talk: PortableConversation, message: str) -> PortableConversation:
    """Return the conversation with only the thread that ends with this message."""
    path = thread(replace(talk, head=message))
    setup = next((said.setup for said in reversed(path) if said.setup), talk.setup)
    return replace(talk, messages=path, head=message, setup=setup, setup_at=len(path), partials=())


def setup_of(talk: PortableConversation) -> Setup:
    """Return the setup at the head. It is the setup of the message there, unless the conversation was configured after
    that message: a branch keeps its own setup, independent of other branches."""
    path = thread(talk)
    said_since = {said.id for said in talk.messages[talk.setup_at :]}
    if path and path[-1].id in said_since and not _has_one_setup(talk):
        return _setup_at(talk, path[-1].setup)
    return _setup_at(talk, talk.setup)


def _has_one_setup(talk: PortableConversation) -> bool:
    """Return True if the conversation has only the setup that it was started with."""
    return (len(talk.setups), talk.setup, talk.setup_at) == (1, 1, 0)


def _setup_at(talk: PortableConversation, number: int) -> Setup:
    return talk.setups[number - 1] if number else Setup()


def opening_setup(talk: PortableConversation) -> Setup:
    """Return the setup of the first message of the thread, or of the conversation if the thread is empty."""
    return next((_setup_at(talk, said.setup) for said in thread(talk) if said.setup), setup_of(talk))


def setup_changes(talk: PortableConversation, section: "Section") -> dict[str, Setup]:
    """Return the new setup by the id of each message in a section before which the setup changed. The thread begins
    with `opening_setup`; a branch begins with the setup of the message that it parts from."""
    by_id = {said.id: said for said in talk.messages}
    first = section.messages[0]
    if not section.is_thread and first.parent is not None:
        before = _setup_at(talk, by_id[first.parent].setup)
    else:
        before = opening_setup(talk) if section.is_thread else Setup()
    found: dict[str, Setup] = {}
    for said in section.messages:
        after = _setup_at(talk, said.setup) if said.setup else before
        if after != before:
            found[said.id] = after
        before = after
    return found


def setup_after(talk: PortableConversation) -> Setup | None:
    """Return the setup that was configured after the last message of the thread, or None."""
    last = next((_setup_at(talk, said.setup) for said in reversed(thread(talk)) if said.setup), None)
    now = setup_of(talk)
    return now if last is not None and now != last else None


def sections(talk: PortableConversation) -> Iterator[Section]:
    """Yield the thread first, without a title unless it continues another message, then the branches in order of
    creation."""
    main = thread(talk)
    if main:
        yield Section(_title(main[0]) if main[0].link else "", main[0].link, main, True)
    told = {said.id for said in main}
    below: dict[str | None, list[PortableMessage]] = {}
    for said in talk.messages:
        below.setdefault(said.parent, []).append(said)
    for said in talk.messages:
        if said.id not in told:
            branch = tuple(_down(said, below))
            told |= {one.id for one in branch}
            yield Section(_title(said), said.parent or said.link, branch)


def _down(first: PortableMessage, below: dict[str | None, list[PortableMessage]]) -> Iterator[PortableMessage]:
    """Yield a message and its descendants, always along the oldest child; the other children are branches of their
    own."""
    at: PortableMessage | None = first
    while at is not None:
        yield at
        at = next(iter(below.get(at.id, ())), None)


def _title(first: PortableMessage) -> str:
    if first.parent is not None:
        return "Another branch, after"
    if first.link is None:
        return "Another beginning"
    return "Goes on after" if first.main else "Said aside, for"


# -- what stands in a message


def moment(said: PortableMessage) -> datetime | None:
    """Return the time of a message, or None."""
    return to_datetime(said.created_us) if said.created_us else None


def text_in(block: Block) -> str | None:
    """Return the text of a block, or None if it is not text."""
    content = block.content
    if isinstance(content, Attachment):
        content = content.load() if content.text and not content.is_missing else b""
    return content if isinstance(content, str) else None


def call_in(block: Block) -> tuple[str, str]:
    """Return the name of the called tool, and its arguments as indented JSON."""
    given = block.arguments
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):  # as the model wrote it, even where that is not JSON
            given = json.loads(given)
    known = block.tool_name is not None
    return block.tool_name or "?", pretty(given) if known else text_in(block) or ""


def pretty(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def placeholder(block: Block) -> str:
    """Describe content that cannot be shown: its type and its size."""
    kind = block.modality if block.modality != "text" else "bytes"
    content = block.content
    size = content.size if isinstance(content, Attachment) else len(content)
    missing = ", missing from the store" if isinstance(content, Attachment) and content.is_missing else ""
    return " ".join(f"{kind}, {block.mime_type}, {size:,} bytes{missing}".split())  # always one line
