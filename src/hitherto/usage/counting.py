"""Counting: the tokens of all answers in a store, by day, model, project or source.

An answer is one message and counts once: a fork shares it, and an import knows it again. A message that was copied into
a conversation of its own (`detach`, `copy_to`) counts where it came from, as long as that is there.
"""

from collections.abc import Iterator, Sequence
from datetime import date, datetime
from functools import cache
from typing import Literal

from msgspec import Struct

from .._engine.bodies import Counted, decode_counted
from .._engine.engine import Engine
from .._engine.packs import Reader
from .._engine.setups import open_setups
from .._engine.state import ConversationState
from ..backend import CHAT, ConversationRow, MessageRow, Where
from ..errors import Damaged, HithertoError, InvalidArgument, NotFound
from ..listing import conversations
from ..model import Usage, to_datetime
from ..store import Store
from .prices import Prices

By = Literal["day", "model", "project", "source", "all"]
BY = ("day", "model", "project", "source", "all")
_AT_ONCE = 1000


class UsageRow(Struct, frozen=True):
    """The usage of one day, model, project or source."""

    name: str
    answers: int
    usage: Usage
    cost: float  # of the answers whose models have a price
    unpriced: int = 0  # answers of models without a price


class UsageReport(Struct, frozen=True):
    """Tokens and their cost, in rows and altogether."""

    by: str
    rows: tuple[UsageRow, ...]
    total: UsageRow
    currency: str
    prices_of: str  # the date of the prices
    unpriced: tuple[str, ...] = ()  # models without a price
    unreadable: int = 0  # conversations that cannot be read, and are not counted


class _Answer(Struct):
    day: date
    model: str
    project: str
    source: str
    usage: Usage
    origin: str | None


class _Sum:
    """The sum of some answers."""

    def __init__(self) -> None:
        self.answers = self.unpriced = 0
        self.usage, self.cost = Usage(), 0.0

    def add(self, answer: _Answer, cost: float | None) -> None:
        self.answers += 1
        self.usage += answer.usage
        self.cost += cost or 0.0
        self.unpriced += cost is None

    def row(self, name: str) -> UsageRow:
        return UsageRow(name, self.answers, self.usage, round(self.cost, 6), self.unpriced)


def count_usage(
    store: Store,
    *,
    by: By = "day",
    prices: Prices | None = None,
    since: datetime | None = None,
    local: bool = False,
) -> UsageReport:
    """Count the tokens of all answers, and what they cost.

    `by` chooses the rows: a day, a model, a project, a source, or `all` as one row. `since` leaves out what is older.
    Days are those of UTC, or with `local` of this machine.
    """
    return count_by(store, (by,), prices=prices, since=since, local=local)[by]


def count_by(
    store: Store,
    kinds: Sequence[By],
    *,
    prices: Prices | None = None,
    since: datetime | None = None,
    local: bool = False,
) -> dict[By, UsageReport]:
    """Count as `count_usage` does, in rows of several kinds from one pass over the answers."""
    for by in kinds:
        if by not in BY:
            raise InvalidArgument(f"usage is counted by {', '.join(BY)}, not by {by!r:.40}")
    store.engine.ensure_open()
    prices = prices or Prices.ours()
    counting = _Counting(store.engine, local=local)
    rows: dict[By, dict[str, _Sum]] = {by: {} for by in kinds}
    total = _Sum()
    price_of = cache(prices.price_of)
    unpriced: set[str] = set()
    for answer in counting.answers(since):
        price = price_of(answer.model)
        cost = None if price is None else price.cost(answer.usage) / prices.per
        if cost is None:
            unpriced.add(answer.model)
        for by, sums in rows.items():
            name = "all" if by == "all" else str(getattr(answer, by))
            sums.setdefault(name, _Sum()).add(answer, cost)
        total.add(answer, cost)
    return {
        by: UsageReport(
            by=by,
            rows=tuple(sums[name].row(name) for name in sorted(sums)),
            total=total.row("total"),
            currency=prices.currency,
            prices_of=prices.date,
            unpriced=tuple(sorted(unpriced)),
            unreadable=counting.unreadable,
        )
        for by, sums in rows.items()
    }


def _said_at(header: MessageRow, body: Counted) -> int:
    """Return when an answer was said. An imported one may be older than its place in the conversation allows for."""
    came = body.extra and body.extra.imported
    at = came.get("at") if isinstance(came, dict) else None
    return at if isinstance(at, int) else header.created_at


class _Counting:
    """One pass over the answers of a store."""

    def __init__(self, engine: Engine, *, local: bool) -> None:
        self._engine, self._local = engine, local
        self.unreadable = 0

    def answers(self, since: datetime | None) -> Iterator[_Answer]:
        """Yield each answer once."""
        copies: dict[str, _Answer] = {}
        for row in conversations(self._engine.backend, Where(CHAT), oldest_first=True):
            if since is not None and to_datetime(row.active_at) < since:
                continue
            for answer in self._read(row, since):
                if answer.origin is None:
                    yield answer
                else:
                    copies.setdefault(answer.origin, answer)
        yield from (answer for origin, answer in copies.items() if not self._is_stored(origin))

    def _is_stored(self, origin: str) -> bool:
        """Return True if the message that another one was copied from is there."""
        try:
            return self._engine.find_message_row(origin.rpartition("/")[2]) is not None
        except HithertoError:  # an id from elsewhere
            return False

    def _read(self, row: ConversationRow, since: datetime | None) -> list[_Answer]:
        """Return the answers in a conversation. One that cannot be read is counted, and left out."""
        try:
            return self._engine.read_consistently(row, lambda now: list(self._answers_of(now, since)))
        except NotFound:  # deleted since the listing
            return []
        except Damaged:
            self.unreadable += 1
            return []

    def _answers_of(self, row: ConversationRow, since: datetime | None) -> Iterator[_Answer]:
        engine = self._engine
        state = ConversationState(engine, row, own=True)
        meta = state.meta
        models = [setup.model for setup in open_setups(state)]
        reader, after = Reader(engine), None
        while rows := engine.backend.scan(row.id, after=after, limit=_AT_ONCE):
            after = rows[-1].seq
            for header in rows:
                if header.role != "assistant":
                    continue
                body = decode_counted(engine.read_content(header, state, reader)[1])
                at = to_datetime(_said_at(header, body))
                if body.usage is None or (since is not None and at < since):
                    continue
                own = body.extra and body.extra.model
                known = models[body.setup - 1] if 0 < body.setup <= len(models) else ""
                yield _Answer(
                    day=(at.astimezone() if self._local else at).date(),
                    model=(own if isinstance(own, str) else "") or known or "unknown",
                    project=meta.project or "none",
                    source=meta.metadata.get("source", "hitherto"),
                    usage=body.usage,
                    origin=body.origin,
                )
