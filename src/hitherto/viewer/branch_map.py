"""The branch map: the tree of a conversation as a picture that stays readable.

A stretch without forks is one row, whatever its length, so the picture has about two rows for each fork. The branch
that leads to the head stands on the left; every other branch leaves its parent to the right, and is drawn whole before
its parent goes on, so rails never cross. Of the branches at a fork, the one that needs most lanes goes straight on,
after the one that leads to the head. A compaction goes on in the lane of what it sums up; traces of sub-agents leave to
the side. The rows are links in an ordinary list, which is also the tree for those who do not see; the rails beside them
are one drawing, made here.
"""

from typing import NamedTuple

from ..formats.exports._markup import EMPTY, Child, Markup, join, tag
from ..formats.exports._message_html import gist_of
from ..model import Saved, to_datetime, trace_of
from .frame import Links, count_of, facts, time_tag
from .outline import Outline
from .queries import StoreView, View
from .values import BranchMap, MapRow

__all__ = ["draw", "legend", "make_map"]

_MOST_AGENTS = 6  # sub-agents of one stretch that are shown at once
_UNIT = 16  # of the drawing, in one rem
_HUES = 7  # colours of lanes, after which they begin anew
_DEEPEST = 16  # lanes by which a row moves its words to the right: a binary tree needs 65,536 ends for more
_LONGEST = 48  # the length of the bar of a long stretch


class _Size(NamedTuple):
    """The size of a lane and of a row in the drawing. The styles of `.map` and `.map.wide` fit these."""

    lane: int
    row: int


_NARROW, _WIDE = _Size(18, 46), _Size(20, 36)


class Stretch(NamedTuple):
    """Messages without forks between them."""

    numbers: list[int]
    kind: str
    parent: int | None  # its index among the stretches


class _Placed(NamedTuple):
    at: int  # the index of the stretch
    lane: int
    level: int


def make_map(store: StoreView, view: View, *, at: str | None = None, everything: bool = False) -> BranchMap:
    """Return the map of a conversation. `at` is a message on the path that is shown."""
    outline = view.outline
    stretches, hidden = _stretches(outline, everything=everything)
    path = {n: place for place, n in enumerate(outline.path(None if at is None else view.number(at)))}
    placed = _place(outline, stretches)
    rows_of = {one.at: row for row, one in enumerate(placed)}
    wanted = {n for one in placed for n in (*stretches[one.at].numbers[:3], stretches[one.at].numbers[-1])}
    messages = {view.number(message.id): message for message in view.messages(sorted(wanted))}
    rows = []
    for one in placed:
        stretch = stretches[one.at]
        first, last = stretch.numbers[0], stretch.numbers[-1]
        label, text = _words(stretch, messages)
        rows.append(
            MapRow(
                first=view.name(first),
                last=view.name(last),
                count=len(stretch.numbers),
                lane=one.lane,
                kind=stretch.kind,
                parent=None if stretch.parent is None else rows_of[stretch.parent],
                active=first in path,
                position=path.get(first),
                head=outline.head in stretch.numbers,
                begun_at=to_datetime(outline.rows[first].created_at),
                active_at=to_datetime(outline.rows[last].created_at),
                label=label,
                text=text,
                level=one.level,
            )
        )
    lanes = max((row.lane for row in rows), default=0) + 1
    return BranchMap(conversation=store.header(view), rows=rows, lanes=lanes, hidden_agents=hidden)


def _words(stretch: Stretch, messages: dict[int, Saved]) -> tuple[str | None, str]:
    """Return the label of a stretch, and the beginning of its first prompt."""
    known = [messages[n] for n in (*stretch.numbers[:3], stretch.numbers[-1]) if n in messages]
    label = next((m.label for m in reversed(known) if m.label and trace_of(m.label) is None), None)
    if stretch.kind == "subagent" and known and known[0].label:
        label = known[0].label.split(":")[1] if ":" in known[0].label else known[0].label
    said = [m for m in known if m.role == "user"] or known
    return label, next((gist for m in said if (gist := gist_of(m.blocks))), "")


def _stretches(outline: Outline, *, everything: bool) -> tuple[list[Stretch], int]:
    """Return the stretches, parents first, and how many traces of sub-agents were left out."""
    found: list[Stretch] = []
    of: dict[int, int] = {}
    served = {n: link for link, numbers in outline.agents.items() for n in numbers}
    shown: dict[int, int] = {}
    left_out: set[int] = set()
    for number, row in outline.rows.items():
        above = outline.above[number]
        if above in left_out:
            left_out.add(number)
            continue
        if above is None and number in served:
            parent = of.get(served[number])
            shown[parent or 0] = shown.get(parent or 0, 0) + 1
            if parent is None or (shown[parent] > _MOST_AGENTS and not everything):
                left_out.add(number)
                continue
            of[number] = len(found)
            found.append(Stretch([number], "subagent", parent))
            continue
        sums_up = row.parent is None and above is not None
        if above is None or sums_up or len(outline.below[above]) > 1:
            kind = "compaction" if sums_up else "branch" if row.main or above is None else found[of[above]].kind
            of[number] = len(found)
            found.append(Stretch([number], kind, None if above is None else of[above]))
            continue
        of[number] = of[above]
        found[of[above]].numbers.append(number)
    return found, sum(n in served for n in left_out)


def _place(outline: Outline, stretches: list[Stretch]) -> list[_Placed]:
    """Return the stretches in the order in which they are drawn, each with its lane."""
    below: dict[int | None, list[int]] = {}
    for index, stretch in enumerate(stretches):
        below.setdefault(stretch.parent, []).append(index)
    trunk = set(outline.trunk)
    need: dict[int, int] = {}
    straight: dict[int, int | None] = {}
    for index in reversed(range(len(stretches))):
        children = below.get(index, [])
        ahead = [c for c in children if stretches[c].kind != "subagent" or stretches[index].kind == "subagent"]
        on = max(ahead, key=lambda c: (stretches[c].numbers[0] in trunk, need[c]), default=None)
        straight[index] = on
        widest = max((need[c] + 1 for c in children if c != on), default=1)
        need[index] = max(widest, 1 if on is None else need[on])
    placed: list[_Placed] = []
    waiting = [_Placed(index, 0, 1) for index in reversed(below.get(None, []))]
    while waiting:
        one = waiting.pop()
        placed.append(one)
        on = straight[one.at]
        if on is not None:
            waiting.append(_Placed(on, one.lane, one.level + 1))
        aside = [c for c in below.get(one.at, []) if c != on]
        waiting += [_Placed(c, one.lane + 1, one.level + 1) for c in reversed(aside)]
    return placed


# -- the picture


def draw(links: Links, found: BranchMap, *, at: str | None = None, wide: bool = False) -> Markup:
    """Return the map as HTML: the rails, and a row for each stretch. A wide one has rows of one line."""
    id = found.conversation.id
    items = [tag("li", _row(links, id, row), role="none") for row in found.rows]
    more: Child = None
    if found.hidden_agents:
        words = f"{count_of(found.hidden_agents, 'more sub-agent')}"
        more = tag("p", tag("a", words, href=links.conversation(id, "/map", at=at, all="1")), class_="note")
    label = f"Branches: {count_of(len(found.rows), 'stretch', 'stretches')} without forks"
    tree = tag("ul", *items, role="tree", aria_label=label)
    rails = _rails(found, _WIDE if wide else _NARROW)
    return join(tag("div", rails, tree, class_="map wide" if wide else "map"), more)


def legend() -> Markup:
    """Return what the lines of the map mean."""
    kinds = (("the path that is read", "active"), ("a branch", "branch hue-1"), ("summed up", "compaction active"))
    shown = []
    for words, kind in (*kinds, ("a sub-agent", "subagent")):
        line = tag("path", d="M1 5H27", class_=f"rail {kind}")
        shown.append(
            tag("span", tag("svg", line, viewBox="0 0 28 10", width="28", height="10", aria_hidden="true"), words)
        )
    return tag("p", *shown, class_="legend")


def _row(links: Links, id: str, row: MapRow) -> Markup:
    kinds = [name for name, is_so in (("active", row.active), ("has-head", row.head)) if is_so]
    kinds += [_hue(row)] if row.lane and row.kind != "subagent" else []
    title = {"compaction": "Summed up", "subagent": "Sub-agent"}.get(row.kind)
    own = None if row.kind == row.label else row.label
    label = tag("b", f"{title}: {own}" if title and own else title or own or "", class_="label")
    about = facts(
        tag("span", "now", class_="now") if row.head else None,
        join(f"{row.count:,}", tag("span", f" message{'s' if row.count > 1 else ''}", class_="unit")),
        time_tag(row.active_at),
    )
    # A stretch of the path that is shown is one to go to; any other is one to change to.
    return tag(
        "a",
        tag("span", label if title or row.label else EMPTY, " ", row.text or "(nothing to read)", class_="words"),
        tag("span", about, _length_bar(row.count), class_="facts"),
        href=links.message(id, row.first),
        role="treeitem",
        class_=" ".join(kinds) or None,
        aria_level=row.level,
        aria_selected="true" if row.active else "false",
        aria_current="true" if row.head else None,
        data_id=row.first,
        data_position=row.position,
        data_lane=min(row.lane, _DEEPEST),
        title=row.text,
    )


def _hue(row: MapRow) -> str:
    return f"hue-{(row.lane - 1) % _HUES + 1}"


def _length_bar(count: int) -> Markup:
    """Return how long a stretch is, as a bar: twice as many messages are one step more."""
    width = min(_LONGEST, 6 * count.bit_length())
    bar = tag("rect", x=0, y=0, width=width, height=4, rx=2)
    return tag("svg", bar, viewBox=f"0 0 {_LONGEST} 4", class_="length", aria_hidden="true", focusable="false")


def _rails(found: BranchMap, size: _Size) -> Markup:
    """Return the drawing: a line from each stretch to the one that it leaves, the active ones above the others."""
    lane, step = size
    width, height = found.lanes * lane, len(found.rows) * step
    lines: list[tuple[bool, Markup]] = []
    for number, row in enumerate(found.rows):
        x, y = row.lane * lane + lane // 2, number * step + step // 2
        active = row.active
        hue = f" {_hue(row)}" if row.lane else ""
        if row.parent is not None:
            above = found.rows[row.parent]
            from_x, from_y = above.lane * lane + lane // 2, row.parent * step + step // 2
            turn = f"V{y - lane}Q{from_x} {y} {from_x + lane} {y}H{x}" if from_x != x else f"V{y}"
            on = active and above.active and row.kind != "subagent"
            kind = f"rail {row.kind}{hue}{' active' if on else ''}"
            lines.append((on, tag("path", d=f"M{from_x} {from_y}{turn}", class_=kind)))
        radius = 6 if row.head else 4 if row.kind == "subagent" else 5
        kind = f"stop {row.kind}{hue}{' active' if active else ''}{' head' if row.head else ''}"
        lines.append((True, tag("circle", cx=x, cy=y, r=radius, class_=kind)))
    shown = [line for on, line in lines if not on] + [line for on, line in lines if on]
    return tag(
        "svg",
        *shown,
        viewBox=f"0 0 {width} {height}",
        width=f"{width / _UNIT:g}rem",
        height=f"{height / _UNIT:g}rem",
        class_="rails",
        aria_hidden="true",
        focusable="false",
    )
