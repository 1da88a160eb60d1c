"""Listings: conversations by page, messages one by one, and the cursors that mark a place in them.

A listing costs what is looked at. A page of conversations opens no description until a title is asked for;
messages of many conversations are merged by time while they are read, opening one conversation after the other.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from ._engine.bodies import Meta, VerifiedRow
from ._engine.filters import Filter
from ._engine.packs import Reader
from .backend import Backend, ConversationRow, MessageRow, Position, Where
from .errors import Damaged, InvalidArgument, InvalidCursor, KeyUnavailable, NotFound
from .ids import show_conversation_id
from .model import Saved, approximate_tokens, to_datetime

if TYPE_CHECKING:
    from ._engine.engine import Engine

__all__ = ["ConversationInfo", "MessageListing", "Page"]

_PAGE = 200  # conversations read at a time
_ALL = Filter()
_FIRST_BATCH_SIZE, BATCH_SIZE = 8, 256  # messages read at a time: a few at first, then more

Order = tuple[int, bytes, int]  # time, conversation, sequence


class ConversationInfo:
    """A conversation in a listing.

    Each property reads one of two sources: the row (`_row`: times, counts, hold), or the description (title, project,
    metadata), which is sealed in a sealed store. The row is read, together with those of the same page, when a property
    other than `id` is used; the description is opened on first use. Both raise `NotFound` if the conversation was
    purged since it was listed."""

    __slots__ = ("_id", "_meta", "_rows")

    def __init__(self, id: bytes, rows: "_Rows") -> None:
        self._id = id
        self._rows = rows
        self._meta: Meta | None = None

    def __repr__(self) -> str:
        return f"<ConversationInfo {self.id}>"

    @property
    def _row(self) -> ConversationRow:
        return self._rows[self._id]

    def _read_meta(self) -> Meta:
        if self._meta is None:
            try:
                sound = self._rows.proven.get(self._id) or VerifiedRow(
                    self._row, self._rows.engine.codec.envelope(self._row)
                )
                self._meta = sound.meta
            except (Damaged, KeyUnavailable):  # its keys may be others since it was listed
                self._meta = self._rows.engine.state_of(self._rows.engine.read_row(self._id)).meta
        return self._meta

    @property
    def id(self) -> str:
        return show_conversation_id(self._id)

    @property
    def kind(self) -> str:
        """The kind of conversation: `chat`, or that of a framework."""
        return self._row.kind

    @property
    def title(self) -> str:
        return self._read_meta().title

    @property
    def key(self) -> str | None:
        return self._read_meta().key

    @property
    def project(self) -> str | None:
        return self._read_meta().project

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._read_meta().metadata)

    @property
    def head(self) -> str | None:
        """The id of the message that resume continues."""
        return None if self._row.head is None else self._rows.engine.message_ids.id(self._row.head)

    @property
    def count(self) -> int:
        """Messages on all branches."""
        return self._row.count

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self._row.size

    @property
    def approximate_tokens(self) -> int:
        return approximate_tokens(self._row.size)

    @property
    def created_at(self) -> datetime:
        return to_datetime(self._read_meta().created or self._row.created_at)

    @property
    def active_at(self) -> datetime:
        return to_datetime(self._row.active_at)

    @property
    def expires_at(self) -> datetime | None:
        return None if self._row.expires_at is None else to_datetime(self._row.expires_at)

    @property
    def held(self) -> bool:
        return self._row.held

    @property
    def problem(self) -> str | None:
        """Why the description cannot be read; None if it can."""
        try:
            self._read_meta()
        except Damaged as error:
            return str(error)
        return None


def engine_of(info: ConversationInfo) -> "Engine":
    """Return the engine of the store that a conversation was listed in."""
    return info._rows.engine


class _Rows:
    """The rows of a page, read once, when the first is asked for."""

    def __init__(self, engine: "Engine", ids: list[bytes]) -> None:
        self.engine = engine
        self._ids = ids
        self._found: dict[bytes, ConversationRow] | None = None
        self.proven: dict[bytes, VerifiedRow] = {}

    def __getitem__(self, id: bytes) -> ConversationRow:
        if self._found is None:
            self._found = {row.id: row for row in self.engine.backend.lookup(ids=self._ids)}
        if id not in self._found:
            raise NotFound("conversation", [show_conversation_id(id)])
        return self._found[id]

    def sound(self) -> list[bytes]:
        """Return the ids whose rows pass their integrity proof. The others are in quarantine."""
        self._found = {}
        for row in self.engine.backend.lookup(ids=self._ids):
            sound = self.engine.verified_row(row)
            if sound is not None:
                self._found[row.id], self.proven[row.id] = sound.row, sound
        return [id for id in self._ids if id in self._found]


def infos(engine: "Engine", ids: list[bytes], wanted: Filter = _ALL) -> list[ConversationInfo]:
    """These conversations, for a page. Of a sealed store, those that are sound, and really wanted: nothing proves that
    a tag is where it belongs."""
    rows = _Rows(engine, ids)
    if engine.codec.in_clear:
        return [ConversationInfo(id, rows) for id in ids]
    found = [ConversationInfo(id, rows) for id in rows.sound()]
    found.sort(key=lambda info: (info._row.active_at, info._id), reverse=True)  # the order of an index is not proven
    if wanted.is_kind_alone:
        return found
    return [info for info in found if info.problem is not None or wanted.fits(info._read_meta())]


class Page(Struct, frozen=True):
    """A part of a listing. Pass `next_cursor` to the same listing for the next part; None: this was the last."""

    items: list[ConversationInfo]
    next_cursor: str | None
    total: int | None = None

    def __iter__(self) -> Iterator[ConversationInfo]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class MessageListing(Iterator[Saved]):
    """Messages, read as they are asked for. `cursor` marks the place after the last one given out."""

    def __init__(
        self,
        engine: "Engine",
        rows: Iterator[MessageRow],
        listing: str,
        *,
        lazy: bool = False,
        fits: Callable[[Saved], bool] | None = None,
    ) -> None:
        self.engine = engine
        self._fits = fits
        self._lazy = lazy
        self._reader = Reader(engine)
        self._rows = rows
        self._listing = listing
        self._last: MessageRow | None = None

    def __repr__(self) -> str:
        return f"<MessageListing after {self.cursor or 'nothing'}>"

    def __iter__(self) -> "MessageListing":
        return self

    def __next__(self) -> Saved:
        self.engine.ensure_open()
        while True:
            row = next(self._rows)
            with suppress(NotFound):  # deleted since it was listed
                message = self.engine.read_for_listing(row, lazy=self._lazy, reader=self._reader)
                self._last = row
                if self._fits is None or message.problem is not None or self._fits(message):
                    return message

    @property
    def cursor(self) -> str | None:
        """Pass it as `cursor=` to the same listing to go on from here."""
        return None if self._last is None else write_cursor(self.engine.backend, self._listing, order(self._last))


def order(row: MessageRow) -> Order:
    """The place of a message among those of all conversations."""
    return row.created_at, row.conversation, row.seq


def scan(backend: Backend, conversation: bytes, *, newest_first: bool) -> Iterator[MessageRow]:
    """All messages of a conversation by sequence."""
    after, limit = None, _FIRST_BATCH_SIZE
    while True:
        rows = backend.scan(conversation, after=after, newest_first=newest_first, limit=limit)
        for row in rows:
            if after is not None and (row.seq >= after if newest_first else row.seq <= after):
                raise Damaged("the messages of a conversation are listed out of order")
            after = row.seq
            yield row
        if len(rows) < limit:
            return
        limit = min(2 * limit, BATCH_SIZE)


def conversations(backend: Backend, where: Where, *, oldest_first: bool) -> Iterator[ConversationRow]:
    """All conversations, a page at a time."""
    for places in pages(backend, [where], oldest_first=oldest_first):
        yield from backend.lookup(ids=[place.id for place in places])


def pages(
    backend: Backend,
    where: Sequence[Where],
    after: Position | None = None,
    size: int = _PAGE,
    *,
    oldest_first: bool = False,
) -> Iterator[list[Position]]:
    """Yield the places of conversations that one of these conditions selects, page by page. `Damaged` if a page does
    not come after the one before: an index that leads in a circle would have no end."""
    while places := page(backend, where, after, size, oldest_first=oldest_first):
        ends = (places[-1].at, places[-1].id)
        if after is not None and (ends <= (after.at, after.id) if oldest_first else ends >= (after.at, after.id)):
            raise Damaged("conversations are listed out of order")
        yield places
        if len(places) < size:
            return
        after = places[-1]


def page(
    backend: Backend, where: Sequence[Where], after: Position | None, size: int, *, oldest_first: bool = False
) -> list[Position]:
    """The next places after this one, each of them once."""
    if len(where) == 1:
        return backend.page(where[0], after, size, oldest_first=oldest_first)
    found = {(at.at, at.id) for one in where for at in backend.page(one, after, size, oldest_first=oldest_first)}
    return [Position(*place) for place in sorted(found, reverse=not oldest_first)[:size]]


def count_all(engine: "Engine", where: Where) -> int:
    """How many conversations a listing without filters shows in all. The backend counts; no row is opened. A sealed
    listing leaves out the conversations in quarantine, so the count does, too. One that was tampered with, and that
    was not read since, is still counted."""
    out = [row for row in engine.backend.lookup(ids=list(left_out(engine))) if row.kind == where.kind]
    if where.alive_at is not None:
        out = [row for row in out if row.held or row.expires_at is None or row.expires_at > where.alive_at]
    return engine.backend.count(where) - len(out)


def left_out(engine: "Engine") -> set[bytes]:
    """The conversations that listings leave out: those in quarantine, if the store is sealed."""
    return set() if engine.codec.in_clear else engine.quarantine.conversations()


def merge(backend: Backend, *, newest_first: bool) -> Iterator[MessageRow]:
    """All messages of all conversations by time.

    Times never fall along a conversation, so its last activity (or its beginning) says from where on it has to be
    looked at: conversations are opened one by one as the listing reaches them.
    """
    from heapq import heappop, heappush  # noqa: PLC0415  # most listings are of conversations

    sign = -1 if newest_first else 1
    heap: list[tuple[Order | tuple[int, int, int], MessageRow, Iterator[MessageRow]]] = []

    def push(rows: Iterator[MessageRow]) -> None:
        row = next(rows, None)
        if row is not None:
            place = (sign * row.created_at, sign * int.from_bytes(row.conversation, "big"), sign * row.seq)
            heappush(heap, (place, row, rows))

    closed = (row for row in conversations(backend, Where(), oldest_first=not newest_first) if row.count)
    upcoming = next(closed, None)
    while heap or upcoming is not None:
        while upcoming is not None:
            reaches = -upcoming.active_at if newest_first else upcoming.created_at
            if heap and reaches > heap[0][0][0]:
                break
            push(scan(backend, upcoming.id, newest_first=newest_first))
            upcoming = next(closed, None)
        if heap:
            _, row, rows = heappop(heap)
            yield row
            push(rows)


def check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= 10_000:
        raise InvalidArgument("the limit is a number from 1 to 10,000")


def write_cursor(backend: Backend, listing: str, place: tuple[int, bytes, int]) -> str:
    """A place in a listing, as opaque text that only the same listing of the same workspace takes back."""
    from base64 import urlsafe_b64encode  # noqa: PLC0415  # only for turning a page

    data = msgspec.msgpack.encode((listing, backend.info.workspace[:4], place))
    return urlsafe_b64encode(zlib.crc32(data).to_bytes(4, "big") + data).decode().rstrip("=")


def read_cursor(backend: Backend, listing: str, cursor: str) -> tuple[int, bytes, int]:
    """The place behind a cursor of this listing, or `InvalidCursor`."""
    from base64 import b64decode  # noqa: PLC0415  # only for turning a page

    try:
        raw = b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found = msgspec.msgpack.decode(raw[4:], type=tuple[str, bytes, tuple[int, bytes, int]])
    except (AttributeError, ValueError, msgspec.MsgspecError):
        raise InvalidCursor("not a cursor") from None
    if zlib.crc32(raw[4:]) != int.from_bytes(raw[:4], "big") or found[:2] != (listing, backend.info.workspace[:4]):
        raise InvalidCursor("a cursor of another listing")
    if not all(-(2**63) <= number < 2**63 for number in (found[2][0], found[2][2])):
        raise InvalidCursor("not a cursor")
    return found[2]
