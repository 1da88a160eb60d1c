"""Which conversations a list shows: the filters of the page, as a value.

The store selects by kind, project and label. The rest (model, source, dates, forks, holds) is compared here, card by
card: a page looks at so many conversations and no more, and says where to look further.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ..backend import CHAT
from ..errors import InvalidArgument
from ..formats.exports._markup import Markup, join, tag
from .frame import Links
from .values import ConversationCard

__all__ = ["Wanted", "filter_form"]

_TEXTS = (("project", "Folder"), ("model", "Model"), ("source", "Source"), ("label", "Label of a message"))
_DATES = (("since", "Active since"), ("until", "Active until"))
_FLAGS = (("forked", "with branches"), ("held", "on hold"))


class Wanted(NamedTuple):
    """The filters of a list."""

    kind: str = CHAT
    project: str = ""
    label: str = ""
    model: str = ""
    source: str = ""
    since: str = ""  # days, in the zone of this machine
    until: str = ""
    forked: str = ""  # "1", if it is asked for
    held: str = ""

    @classmethod
    def read(cls, asked: Mapping[str, str]) -> "Wanted":
        """Read the filters of an address."""
        found = cls(**{name: asked[name].strip() for name in cls._fields if asked.get(name, "").strip()})
        _day(found.since), _day(found.until)
        return found

    @property
    def query(self) -> dict[str, str]:
        """The parameters of an address with these filters."""
        given = self._asdict()
        return {name: value for name, value in given.items() if value and (name, value) != ("kind", CHAT)}

    @property
    def is_narrow(self) -> bool:
        """Is something asked for that is compared card by card?"""
        return any((self.model, self.source, self.since, self.until, self.forked, self.held))

    def is_past(self, card: ConversationCard) -> bool:
        """Was this conversation active last before all that are wanted? So were those that follow in the list."""
        since = _day(self.since)
        return since is not None and card.active_at is not None and card.active_at < since

    def fits(self, card: ConversationCard) -> bool:
        until = _day(self.until)
        return (
            self.model.casefold() in (card.model or "").casefold()
            and self.source.casefold() in (card.source or "").casefold()
            and not self.is_past(card)
            and (until is None or card.active_at is None or card.active_at - timedelta(days=1) < until)
            and (not self.forked or card.branches > 1)
            and (not self.held or card.retention.held)
        )


def _day(text: str) -> datetime | None:
    """Return the beginning of a day on this machine."""
    if not text:
        return None
    try:
        return datetime.strptime(text, "%Y-%m-%d").astimezone().astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(f"not a day: {text!r:.40}", hint="a day is 2026-01-31") from None


def filter_form(links: Links, wanted: Wanted) -> Markup:
    """Return the form of the filters, folded unless one is set."""
    given = wanted._asdict()
    fields = [
        tag("label", tag("span", words), tag("input", type="text", name=name, value=given[name], autocomplete="off"))
        for name, words in _TEXTS
    ]
    fields += [
        tag("label", tag("span", words), tag("input", type="date", name=name, value=given[name]))
        for name, words in _DATES
    ]
    flags = [
        tag("label", tag("input", type="checkbox", name=name, value="1", checked=bool(given[name])), join(" ", words))
        for name, words in _FLAGS
    ]
    kind = tag("input", type="hidden", name="kind", value=wanted.kind) if wanted.kind != CHAT else None
    form = tag(
        "form",
        kind,
        tag("div", *fields, class_="fields"),
        tag(
            "p",
            *flags,
            tag("button", "Filter", class_="primary"),
            " ",
            tag("a", "Clear", href=links.home()),
            class_="flags",
        ),
        action=links.home(),
        method="get",
    )
    is_set = bool(wanted.query.keys() - {"kind"})
    return tag("details", tag("summary", "Filter"), form, class_="filter", open=is_set)
