"""What retention does: the policy, what the next sweep takes, what follows, and what a hold keeps.

It is the plan that `hitherto retention run --dry-run` prints, with titles. Nothing here deletes.
"""

from datetime import UTC, datetime

from ..errors import Damaged, NotFound
from ..formats.exports._markup import Child, Markup, tag
from ..retention import SweepItem
from .frame import Links, age, count_of, facts, page, time_tag
from .queries import StoreView
from .values import RetentionItem, RetentionPlan

__all__ = ["make_plan", "retention_page"]

_SHOWN = 50
_WHY = {
    "expired": "no word for longer than the policy allows",
    "own-expiry": "an expiry of its own",
    "recent": "by the policy",
    "undated": "its date cannot be right: counted from when a sweep saw it first",
    "held": "on hold",
    "floor": "younger than the retention floor",
    "being-recorded": "an answer is being recorded",
    "damaged": "damaged: its age is not known",
}


def make_plan(store: StoreView) -> RetentionPlan:
    """Return what a sweep would do now."""
    plan = store.store.plan_sweep()
    ahead = [item for item in plan.items if item.action == "keep" and item.expires_at and item.expires_at > plan.now]
    return RetentionPlan(
        days=None if plan.policy is None else plan.policy.days,
        floor_days=store.store.retention_floor,
        total=len(plan.items),
        due=len(plan.purges),
        held=len(plan.held),
        takes=[_item(store, item) for item in plan.purges[:_SHOWN]],
        next=[_item(store, item) for item in ahead[:_SHOWN]],
        holds=[_item(store, item) for item in plan.held[:_SHOWN]],
    )


def _item(store: StoreView, item: SweepItem) -> RetentionItem:
    try:
        title = store.store.conversation(item.conversation).title
    except (Damaged, NotFound):  # it is listed with its id
        title = ""
    return RetentionItem(
        conversation=item.conversation,
        title=title,
        active_at=item.active_at,
        due_at=item.expires_at,
        action=item.action,
        reason=item.reason,
    )


def retention_page(links: Links, found: RetentionPlan) -> str:
    """Return the plan as a page."""
    rule = "Retention is off: conversations are kept, but for those with an expiry of their own."
    if found.days is not None:
        rule = f"Conversations are deleted {count_of(found.days, 'day')} after the last word in them."
    if found.floor_days is not None:
        rule += f" Nothing is destroyed in the first {count_of(found.floor_days, 'day')} after the last word."
    about = facts(
        f"{found.due:,} of {count_of(found.total, 'conversation')} due",
        f"{found.held:,} due, but on hold" if found.held else None,
    )
    return page(
        links,
        "Retention",
        tag("header", tag("h1", "Retention"), tag("p", rule), tag("p", about, class_="facts"), class_="title"),
        _section(links, "The next sweep takes", found.takes, found.due),
        _section(links, "Due after that" if found.takes else "Due later", found.next, len(found.next)),
        _section(links, "Due, and kept by a hold", found.holds, found.held),
        body_class="list",
        page="retention",
    )


def _section(links: Links, title: str, items: list[RetentionItem], count: int) -> Markup | None:
    if not items:
        return None
    more = tag("p", f"{count - len(items):,} more", class_="note") if count > len(items) else None
    return tag("section", tag("h2", title), tag("ol", *(_row(links, item) for item in items), class_="cards"), more)


def _row(links: Links, item: RetentionItem) -> Markup:
    words: Child = None
    if item.due_at is not None:
        left = (item.due_at - datetime.now(UTC)).total_seconds()
        words = f"in {age(left)}" if left > 0 else f"since {age(-left)}"
    title = tag("h3", item.title or item.conversation[:8], dir="auto")
    return tag(
        "li",
        tag("a", title, href=links.conversation(item.conversation)),
        tag("p", facts(words, _WHY.get(item.reason, item.reason), time_tag(item.active_at)), class_="facts"),
        class_="card",
    )
