"""Answering a search: what the index finds, as hits.

A search has two tiers. Its **matches** have all that the query says, newest or best first. The **nearest** messages fit
a question in plain words best, and need not have all of them (`nearest`). In mode "auto", the nearest are the answer if
there is no match at all. Each hit says of which tier it is.

Hits of the index are looked up in the store, where messages may have been deleted since. Snippets are made from the
messages themselves.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from .._engine.packs import Reader
from ..backend import MessageRow
from ..errors import InvalidArgument, InvalidQuery, NotFound
from ..listing import infos
from ..model import encodable
from ..reports import Hit
from .search import searchable_text

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from ..textindex import Found, TextIndex
    from .query import Query

Mode = Literal["match", "nearest", "auto"]
Order = Literal["newest", "best"]
MODES: Final = ("match", "nearest", "auto")
ORDERS: Final = ("newest", "best")
_DEEPEST = 1_000_000  # hits that can be passed over

_READ_BYTES = 16 << 20  # of the texts that are compared for one answer


def check_arguments(offset: object, role: object, mode: object, order: object) -> None:
    """Raise `InvalidArgument` for arguments of a search that are none."""
    if type(offset) is not int or not 0 <= offset <= _DEEPEST:
        raise InvalidArgument(f"the offset is a number from 0 to {_DEEPEST:,}")
    if role is not None and not (isinstance(role, str) and encodable(role)):
        raise InvalidArgument("a role is text")
    if mode not in MODES:
        raise InvalidArgument(f"a mode of searching is one of {', '.join(MODES)}")
    if order not in ORDERS:
        raise InvalidArgument(f"an order of hits is one of {', '.join(ORDERS)}")


class Asked(Struct, frozen=True):
    """The checked arguments of a search."""

    text: str
    query: "Query | None"  # None for a question that is no query: it has no match
    mode: str
    order: str
    limit: int
    offset: int
    role: str | None
    conversations: Sequence[bytes] | None
    since: int | None
    until: int | None
    alive_at: int | None


def read_query(text: str, mode: str) -> "Query | None":
    """Return the query of a search; None for a text that is none, where the mode allows it. Raises `InvalidQuery`."""
    from .query import parse, parse_loosely  # noqa: PLC0415  # only searches need it

    if mode == "match":
        return parse(text)
    parse_loosely(text)
    try:
        return parse(text)
    except InvalidQuery:
        return None


def answer(engine: "Engine", index: "TextIndex", asked: Asked) -> list[Hit]:
    """Return the hits of a search whose messages still exist, of one tier."""
    asking = _Asking(engine, index, asked)
    if asked.mode == "nearest" or asked.query is None:
        return asking.nearest()
    hits = asking.match(asked.query)
    if hits or asked.mode == "match":
        return hits
    if asked.offset and _Asking(engine, index, replace(asked, limit=1, offset=0)).match(asked.query):
        return []  # the matches end before this page
    return asking.nearest()


class _Asking:
    """One search in one index."""

    def __init__(self, engine: "Engine", index: "TextIndex", asked: Asked) -> None:
        self._engine, self._index, self._asked = engine, index, asked

    def _find(self, query: "Query", limit: int, *, ranked: bool = False) -> "list[Found]":
        asked = self._asked
        return self._index.find(
            query,
            limit=limit,
            ranked=ranked,
            role=asked.role,
            conversations=asked.conversations,
            since=asked.since,
            until=asked.until,
        )

    def match(self, query: "Query") -> list[Hit]:
        """Return the messages that match."""
        asked = self._asked
        end = asked.offset + asked.limit
        want = end
        while True:
            found = self._find(query, want, ranked=asked.order == "best")
            rows = self._rows((hit.number, hit.conversation) for hit in found)
            shown = [hit for hit in found if hit.number in rows]
            if len(shown) >= end or len(found) < want:
                break
            want *= 4
        chosen = [(rows[hit.number], hit.score) for hit in shown[asked.offset : end]]
        return self._hits(chosen, query, "match")

    def nearest(self) -> list[Hit]:
        """Return the messages that fit a question best."""
        from .nearest import Candidates, Place, Ranking, parse_question  # noqa: PLC0415  # only questions need it

        asked = self._asked
        question = parse_question(asked.text)
        candidates = Candidates(question, self._find)
        headers = self._rows(candidates.best().items(), bodies=False)
        places = {number: Place(row.conversation, row.seq, row.created_at) for number, row in headers.items()}
        ranking = Ranking(candidates, places)
        chosen = ranking.to_read()
        rows = {row.number: row for row in self._engine.backend.messages(numbers=chosen)}
        texts = self._texts([rows[number] for number in chosen if number in rows])
        titles = {
            bytes.fromhex(info.id.replace("-", "")): info.title
            for info in infos(self._engine, list({rows[number].conversation for number in texts}))
            if info.problem is None
        }
        ranked = ranking.rank(texts, titles)[asked.offset : asked.offset + asked.limit]
        return self._hits([(rows[number], score) for number, score in ranked], question.query, "nearest")

    def _texts(self, rows: Iterable[MessageRow]) -> dict[int, str]:
        """Return the texts of these messages, by number. Beyond a bound, texts are not read: only the words count that
        the index found."""
        reader, size = Reader(self._engine), 0
        texts: dict[int, str] = {}
        for row in rows:
            size += row.size
            is_read = size <= _READ_BYTES
            if not is_read:
                size -= row.size
            message = self._engine.read_for_listing(row, lazy=True, reader=reader) if is_read else None
            texts[row.number] = "" if message is None else searchable_text(message.blocks)
        return texts

    def _rows(self, found: Iterable[tuple[int, bytes]], *, bodies: bool = True) -> dict[int, MessageRow]:
        """Return the rows of those messages that still exist where the index says, by number."""
        where = dict(found)
        rows = self._engine.backend.messages(numbers=[*where], bodies=bodies)
        there = {row.number: row for row in rows if row.conversation == where[row.number]}
        hidden = self._hidden({row.conversation for row in there.values()})
        return {number: row for number, row in there.items() if row.conversation not in hidden}

    def _hidden(self, ids: set[bytes]) -> set[bytes]:
        """Return those of these conversations that expired by the time that was asked for."""
        alive_at = self._asked.alive_at
        if alive_at is None:
            return set()
        rows = self._engine.backend.lookup(ids=list(ids))
        return {row.id for row in rows if row.expires_at is not None and row.expires_at <= alive_at and not row.held}

    def _hits(self, chosen: list[tuple[MessageRow, float]], query: "Query", tier: str) -> list[Hit]:
        reader, hits = Reader(self._engine), []
        for row, score in chosen:
            with suppress(NotFound):  # deleted at this moment
                hits.append(self._hit(row, score, query, tier, reader))
        return hits

    def _hit(self, row: MessageRow, score: float, query: "Query", tier: str, reader: Reader) -> Hit:
        from .snippets import snippet  # noqa: PLC0415  # only those who search need it

        message = self._engine.read_message(row, lazy=True, reader=reader)
        text, spans = snippet(searchable_text(message.blocks), query)
        return Hit(message.id, message.conversation, message.role, message.created_at, text, spans, score, tier)
