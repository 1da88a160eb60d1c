"""Tokens: of a path and of its tree, and of a store by day, model, project and source.

Only what providers counted is summed up; an answer without a count adds nothing. A prefix that branches share was paid
for once, and counts once in the tree.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from ..formats.exports._markup import Markup, tag
from ..model import Usage
from ..usage import UsageReport, UsageRow
from ..usage.counting import count_by
from ..usage.prices import load_prices
from .frame import Links, count_of, facts, page
from .queries import StoreView, View
from .values import ConversationUsage, StoreUsage, Tokens, UsageShare

__all__ = ["conversation_usage", "store_usage", "usage_page"]

_LONGEST_NAME = 60
DAYS = 30


class _Sum:
    """Adds up tokens."""

    def __init__(self) -> None:
        self._usage, self._answers = Usage(), 0

    def add(self, usage: Usage) -> None:
        self._usage, self._answers = self._usage + usage, self._answers + 1

    @property
    def value(self) -> Tokens:
        counted = {name: getattr(self._usage, name) for name in self._usage.__struct_fields__}
        return Tokens(answers=self._answers, **counted)


def conversation_usage(store: StoreView, view: View, at: str | None = None) -> ConversationUsage:
    """Return the tokens of the path through a message, and of the whole conversation."""
    path = set(view.outline.path(None if at is None else view.number(at)))
    here, tree = _Sum(), _Sum()
    for number, usage in store.usages(view).items():
        tree.add(usage)
        if number in path:
            here.add(usage)
    return ConversationUsage(conversation=store.header(view), path=here.value, tree=tree.value)


def store_usage(store: StoreView, days: int = DAYS) -> StoreUsage:
    """Return the tokens of the last days, today included, as `hitherto usage` counts them."""
    today = datetime.now(UTC).astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=days - 1)
    found = count_by(store.store, ("day", "model", "project", "source"), prices=load_prices(), since=first, local=True)
    counted = found["day"]
    by_day = {row.name: _share(row) for row in counted.rows}
    names = [(first.date() + timedelta(days=n)).isoformat() for n in range(days)]
    return StoreUsage(
        days=days,
        total=_tokens_of(counted.total),
        cost=counted.total.cost,
        currency=counted.currency,
        prices_of=counted.prices_of,
        unpriced_models=list(counted.unpriced),
        unreadable=counted.unreadable,
        by_day=[by_day.get(name) or UsageShare(name=name, tokens=Tokens()) for name in names],
        by_model=_largest(found["model"]),
        by_project=_largest(found["project"]),
        by_source=_largest(found["source"]),
    )


def _tokens_of(row: UsageRow) -> Tokens:
    counted = {name: getattr(row.usage, name) for name in row.usage.__struct_fields__}
    return Tokens(answers=row.answers, **counted)


def _share(row: UsageRow) -> UsageShare:
    return UsageShare(name=row.name, tokens=_tokens_of(row), cost=row.cost, unpriced=row.unpriced)


def _largest(found: UsageReport) -> list[UsageShare]:
    return sorted(map(_share, found.rows), key=lambda share: -_tokens(share.tokens))


def _tokens(one: Tokens) -> int:
    return one.input_tokens + one.output_tokens


def _cost(amount: float, currency: str, unpriced: int = 0) -> str:
    more = "+" if unpriced else ""
    return f"${amount:,.2f}{more}" if currency == "USD" else f"{amount:,.2f} {currency}{more}"


def usage_page(links: Links, found: StoreUsage) -> str:
    """Return the tokens of the last days as small charts, with the numbers beside them."""
    periods = [
        tag(
            "a", f"{days} days", href=links.to("/usage", days=days), aria_current="page" if days == found.days else None
        )
        for days in (7, 30, 90, 365)
    ]
    cost = _cost(found.cost, found.currency, len(found.unpriced_models))
    unread = f"{count_of(found.unreadable, 'conversation')} cannot be read, and not counted."
    unpriced = f"Models without a price: {', '.join(map(_short, found.unpriced_models[:10]))}."
    return page(
        links,
        "Usage",
        tag(
            "header",
            tag("h1", "Usage"),
            tag("p", in_words(found.total), class_="facts"),
            tag("p", f"{cost} by prices of {found.prices_of}", class_="facts"),
            tag("nav", *periods, class_="filters", aria_label="Days"),
            class_="title",
        ),
        tag("p", unpriced, class_="note") if found.unpriced_models else None,
        tag("p", unread, class_="note") if found.unreadable else None,
        _section("By day", found.by_day, found.currency, is_time=True),
        _section("By model", found.by_model, found.currency),
        _section("By project", found.by_project, found.currency),
        _section("By source", found.by_source, found.currency),
        body_class="list",
        page="usage",
    )


def in_words(one: Tokens) -> Markup:
    """Return tokens as a line."""
    cached = f"{one.cache_read_tokens:,} of them from a cache" if one.cache_read_tokens else None
    return facts(
        f"{one.input_tokens:,} tokens in", cached, f"{one.output_tokens:,} out", count_of(one.answers, "answer")
    )


def _section(title: str, shares: Iterable[UsageShare], currency: str, *, is_time: bool = False) -> Markup | None:
    """Return a table whose rows have a bar. The bar is an SVG: styles in elements are forbidden."""
    rows = [share for share in shares if is_time or share.tokens.answers]
    if not any(share.tokens.answers for share in rows):
        return None
    most = max(_tokens(share.tokens) for share in rows) or 1
    shown = [
        tag(
            "tr",
            tag("th", _short(share.name), scope="row", title=share.name),
            tag("td", _bar(_tokens(share.tokens) / most), class_="bar-cell"),
            tag("td", f"{share.tokens.input_tokens:,}", class_="right"),
            tag("td", f"{share.tokens.output_tokens:,}", class_="right"),
            tag("td", _cost(share.cost, currency, share.unpriced), class_="right"),
        )
        for share in (reversed(rows) if is_time else rows)
        if share.tokens.answers
    ]
    names = [
        tag("th", name, scope="col", class_=kind)
        for name, kind in (("", None), ("", None), ("in", "right"), ("out", "right"), ("cost", "right"))
    ]
    head = tag("thead", tag("tr", *names))
    widths = tag("colgroup", *(tag("col", class_=kind) for kind in ("name", None, "number", "number", "number")))
    return tag("section", tag("h2", title), tag("table", widths, head, tag("tbody", *shown), class_="usage"))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME:]}"


def _bar(share: float) -> Markup:
    width = max(0.5, round(share * 100, 1))
    bar = tag("rect", x=0, y=0, width=str(width), height=8, rx=2)
    return tag("svg", bar, viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar-chart", aria_hidden="true")
