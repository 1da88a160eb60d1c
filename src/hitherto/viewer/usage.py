"""Tokens: of a path and of its tree, and of a store by day, model and project.

Only what providers counted is summed up; an answer without a count adds nothing. A prefix that branches share was paid
for once, and counts once in the tree.
"""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import islice

from ..errors import Damaged, NotFound
from ..formats._markup import Markup, tag
from ..model import Usage
from .frame import Links, count_of, facts, page
from .queries import StoreView, View
from .values import ConversationUsage, StoreUsage, Tokens, UsageShare

__all__ = ["conversation_usage", "store_usage", "usage_page"]

_MOST = 200_000  # messages that are read for the page of a store
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
    """Return the tokens of the last days, today included."""
    today = datetime.now(UTC).astimezone().date()
    first = today - timedelta(days=days - 1)
    by_day: dict[date, _Sum] = {first + timedelta(days=n): _Sum() for n in range(days)}
    by_model: dict[str, _Sum] = defaultdict(_Sum)
    by_project: dict[str, _Sum] = defaultdict(_Sum)
    about: dict[str, tuple[str, str]] = {}
    total, count = _Sum(), 0
    for message in islice(store.store.messages(attachments="lazy"), _MOST):
        day = message.created_at.astimezone().date()
        if day < first:
            break
        count += 1
        if message.usage is None:
            continue
        if message.conversation not in about:
            about[message.conversation] = _about(store, message.conversation)
        model, project = about[message.conversation]
        for one in (total, by_day.get(day, _Sum()), by_model[model], by_project[project]):
            one.add(message.usage)
    return StoreUsage(
        days=days,
        total=total.value,
        messages=count,
        by_day=[UsageShare(name=day.isoformat(), tokens=one.value) for day, one in by_day.items()],
        by_model=_largest(by_model),
        by_project=_largest(by_project),
        is_complete=count < _MOST,
    )


def _about(store: StoreView, id: str) -> tuple[str, str]:
    with suppress(Damaged, NotFound):  # its tokens count all the same
        talk = store.store.conversation(id)
        return talk.model or "unknown", talk.project or "no project"
    return "unknown", "no project"


def _largest(sums: dict[str, _Sum]) -> list[UsageShare]:
    shares = [UsageShare(name=name, tokens=one.value) for name, one in sums.items()]
    return sorted(shares, key=lambda share: -_tokens(share.tokens))


def _tokens(one: Tokens) -> int:
    return one.input_tokens + one.output_tokens


def usage_page(links: Links, found: StoreUsage) -> str:
    """Return the tokens of the last days as small charts, with the numbers beside them."""
    periods = [
        tag(
            "a", f"{days} days", href=links.to("/usage", days=days), aria_current="page" if days == found.days else None
        )
        for days in (7, 30, 90, 365)
    ]
    note = f"The newest {_MOST:,} messages are counted."
    return page(
        links,
        "Usage",
        tag(
            "header",
            tag("h1", "Usage"),
            tag("p", in_words(found.total), ", ", count_of(found.messages, "message"), class_="facts"),
            tag("nav", *periods, class_="filters", aria_label="Days"),
            class_="title",
        ),
        tag("p", note, class_="note") if not found.is_complete else None,
        _section("By day", found.by_day, is_time=True),
        _section("By model", found.by_model),
        _section("By project", found.by_project),
        body_class="list",
        page="usage",
    )


def in_words(one: Tokens) -> Markup:
    """Return tokens as a line."""
    cached = f"{one.cache_read_tokens:,} of them from a cache" if one.cache_read_tokens else None
    return facts(
        f"{one.input_tokens:,} tokens in", cached, f"{one.output_tokens:,} out", count_of(one.answers, "answer")
    )


def _section(title: str, shares: Iterable[UsageShare], *, is_time: bool = False) -> Markup | None:
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
        )
        for share in (reversed(rows) if is_time else rows)
        if share.tokens.answers
    ]
    names = [
        tag("th", name, scope="col", class_=kind)
        for name, kind in (("", None), ("", None), ("in", "right"), ("out", "right"))
    ]
    head = tag("thead", tag("tr", *names))
    return tag("section", tag("h2", title), tag("table", head, tag("tbody", *shown), class_="usage"))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"…{name[-_LONGEST_NAME:]}"


def _bar(share: float) -> Markup:
    width = max(0.5, round(share * 100, 1))
    bar = tag("rect", x=0, y=0, width=str(width), height=8, rx=2)
    return tag("svg", bar, viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar-chart", aria_hidden="true")
