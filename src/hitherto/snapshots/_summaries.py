"""The result of a listing: a summary of each snapshot, without its messages, and the unreadable ones.

A summary is made without reading the messages: they are counted as pieces of text, and their tokens are guessed from
its length. So a listing costs what finding the pieces costs, however much was said.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import overload

import msgspec
from msgspec import Raw, Struct

from ..errors import InvalidArgument, InvalidMessage
from ..model import approximate_tokens
from ._json_text import check_bounds, compact, read
from ._snapshot import _TIME, VERSION, Described, Snapshot, _checked_id, _checked_time, _metadata, _require_text, _tools

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BASE64 = "[A-Za-z0-9+/_-]"
# A run is looked at from its beginning only, or a text of runs that are a little too short would take for ever.
_LONG = 512  # characters
_PAYLOAD = re.compile(rf"(?<!{_BASE64}){_BASE64}{{{_LONG},}}={{0,2}}")
_SAID = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(:?)')


class Summary(Described, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The entry of a listing for one snapshot."""

    id: str
    provider: str
    model: str
    message_count: int
    approximate_tokens: int
    revision: str
    size: int = 0  # bytes, as stored

    def __repr__(self) -> str:
        """Without the metadata: it ends up in logs."""
        return f"Summary(id={self.id!r}, provider={self.provider!r}, created_at={self.created_at!r})"


class Unreadable(Struct, frozen=True):
    """Something that should be a snapshot, and cannot be read."""

    name: str
    reason: str


class Listing(Sequence[Summary]):
    """Summaries, newest first; `unreadable` has what should be among them and is not."""

    __slots__ = ("_summaries", "unreadable")

    def __init__(self, summaries: Sequence[Summary], unreadable: Sequence[Unreadable] = ()) -> None:
        self._summaries = tuple(summaries)
        self.unreadable = tuple(unreadable)

    @overload
    def __getitem__(self, index: int) -> Summary: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Summary, ...]: ...
    def __getitem__(self, index: int | slice) -> Summary | tuple[Summary, ...]:
        return self._summaries[index]

    def __len__(self) -> int:
        return len(self._summaries)

    def __repr__(self) -> str:
        return f"<Listing of {len(self._summaries)} snapshots, {len(self.unreadable)} unreadable>"


def moment(created_at: str) -> int:
    """A time as a number of nanoseconds, so that times can be compared whatever their zone and their digits."""
    found = _TIME.fullmatch(created_at)
    if not found:
        raise InvalidArgument("the created_at of a snapshot is not a time")
    whole = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00")) - _EPOCH
    return (whole.days * 86_400 + whole.seconds) * 10**9 + int((found[2] or "").ljust(9, "0"))


def summarise(snapshot: Snapshot, size: int = 0) -> Summary:
    return Summary(
        id=snapshot.id,
        provider=snapshot.provider,
        model=snapshot.model,
        created_at=snapshot.created_at,
        message_count=_count_messages(snapshot.messages_json),
        approximate_tokens=approximate_tokens(
            _count_text_bytes(snapshot.messages_json) + len(snapshot.system_prompt.encode())
        ),
        revision=snapshot.revision,
        metadata_items=snapshot.metadata_items,
        size=size,
    )


def _count_messages(messages_json: str) -> int:
    try:
        found = msgspec.json.decode(messages_json.encode(), type=list[Raw] | None)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidMessage("messages is not a list") from None
    return len(found or ())


def _count_text_bytes(messages_json: str) -> int:
    """Count the bytes of the texts in the messages. Long base64 is taken for media, and not counted."""
    text = " ".join([said for said, colon in _SAID.findall(messages_json) if not colon])  # names say nothing
    words = text.split()
    long = [word for word in words if len(word) >= _LONG] if max(map(len, words), default=0) >= _LONG else []
    payload = sum(len(found) for word in long for found in _PAYLOAD.findall(word))
    numbers, escapes = text.count("\\u"), text.count("\\") - text.count("\\\\")
    # An escape stands for a byte, or, as a number, for about two.
    return max(0, len(text.encode()) - payload - 3 * numbers - escapes)


class _Fields(Struct):
    """The fields of a file, the large ones unread."""

    id: str
    provider: str
    created_at: str
    version: int
    model: str | None = None
    system_prompt: str | None = None
    messages: Raw = Raw(b"null")
    tools: Raw = Raw(b"null")
    metadata: dict[str, str] | None = None


_FIELDS = msgspec.json.Decoder(_Fields)
_ENTRIES = msgspec.json.Decoder(list[Raw] | None)


def skim(data: bytes) -> Snapshot:
    """Read a snapshot from a file for its summary: the messages are parsed only as far as counting them requires.
    Irregular files are passed to the strict reader, which reports the problem."""
    try:
        text = data.decode()
        check_bounds(text)
        fields = _FIELDS.decode(data)
        entries = _ENTRIES.decode(fields.messages)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return Snapshot.from_json(data)
    if fields.version != VERSION or any(bytes(entry)[:1] != b"{" for entry in entries or ()):
        return Snapshot.from_json(data)
    tools = bytes(fields.tools).decode()
    return Snapshot(
        id=_checked_id(fields.id),
        provider=_require_text(fields.provider, "provider"),
        model=fields.model or "",
        system_prompt=fields.system_prompt or "",
        messages_json=compact(bytes(fields.messages).decode()),
        created_at=_checked_time(fields.created_at),
        metadata_items=_metadata(fields.metadata),
        tool_records=_tools(read(tools), tools),
    )
