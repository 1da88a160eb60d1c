"""The tree of C14 and the drawing of `log --graph`, as pure functions.

Requirements: C14, and a graph that stays readable at 500 messages and 30 forks.
"""

import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hitherto
from hitherto import Block, Message, formats
from hitherto.cli._graph import Row, draw_graph
from hitherto.cli._terminal import columns
from hitherto.cli._tree import Brief, draw_tree, make_brief, summarise_blocks

from ..support.foreign_files import FIRST_TREE, LATER_TREE, write_cpe

LINE = re.compile(r"( *)(\w{6}) (\(\d{4}-\d\d-\d\d \d\d:\d\d\) \[[A-Z ]+\].*)")


def msg(number: int, parent: int | None, *, minutes: int | None = None, text: str = "text", **more: Any) -> Brief:
    at = datetime(2024, 1, 15, 10, 30, tzinfo=UTC) + timedelta(minutes=number if minutes is None else minutes)
    above = None if parent is None else f"m{parent:05d}"
    found = Brief(f"m{number:05d}", above, None, number, "user", at, None, True, text, None)
    return found._replace(**more)


def grown(parents: list[int | None]) -> list[Brief]:
    return [msg(number, parent) for number, parent in enumerate(parents)]


@st.composite
def trees(draw: st.DrawFn) -> list[Brief]:
    size = draw(st.integers(0, 30))
    chosen = [draw(st.none() | st.integers(max(0, n - 6), n - 1)) if n else None for n in range(size)]
    times = [draw(st.integers(0, 5)) for _ in range(size)]
    return [msg(n, parent, minutes=at) for n, (parent, at) in enumerate(zip(chosen, times, strict=True))]


# -- the tree


def test_indentation_grows_only_where_a_message_has_more_than_one_child() -> None:
    assert list(draw_tree(grown([None, 0, 1, 1, 3, 4]), 80)) == [
        "m00000 (2024-01-15 10:30) [USER] text",
        "m00001 (2024-01-15 10:31) [USER] text",
        "    m00002 (2024-01-15 10:32) [USER] text",
        "    ------",
        "    m00003 (2024-01-15 10:33) [USER] text",
        "    m00004 (2024-01-15 10:34) [USER] text",
        "    m00005 (2024-01-15 10:35) [USER] text",
        "    ------",
    ]


def test_a_root_without_answers_has_no_line_below_it() -> None:
    assert len(list(draw_tree(grown([None, None, None]), 80))) == 3


def test_siblings_and_roots_stand_by_the_newest_message_below_them() -> None:
    messages = [
        msg(0, None, minutes=0),
        msg(1, 0, minutes=9),
        msg(2, None, minutes=5),
        msg(3, 0, minutes=1),
    ]
    assert [line.split()[0] for line in draw_tree(messages, 80)] == ["m00002", "m00000", "m00003", "------", "m00001",
                                                                "------"]  # fmt: skip


@given(trees())
def test_the_tree_is_what_its_rules_say(messages: list[Brief]) -> None:
    def active(message: Brief) -> tuple[datetime, int]:
        return max([(message.at, message.seq), *map(active, below(message.id))])

    def below(id: str | None) -> list[Brief]:
        return [message for message in messages if message.parent == id]

    def drawn(message: Brief, depth: int) -> list[tuple[int, str]]:
        children = sorted(below(message.id), key=active)
        deeper = [line for child in children for line in drawn(child, depth + (len(children) > 1))]
        ends = [(depth, "------")] if not children and message.parent else []
        return [(depth, message.id), *deeper, *ends]

    wanted = [line for root in sorted(below(None), key=active) for line in drawn(root, 0)]
    lines = list(draw_tree(messages, 1000))
    assert [((len(line) - len(line.lstrip())) // 4, line.split()[0]) for line in lines] == wanted


def test_a_line_is_cut_to_the_width_and_an_id_is_readable_at_20_columns_however_deep() -> None:
    parents = [None, *(number // 2 for number in range(120))]  # two children each, six deep
    for width in (20, 40, 80):
        lines = list(
            draw_tree([message._replace(summary="a long text 漢字 " * 20) for message in grown(parents)], width)
        )
        assert all(columns(line) <= width for line in lines)
        assert Counter(m[0] for line in lines for m in re.finditer(r"m\d{5}", line)).keys() == {
            f"m{number:05d}" for number in range(121)
        }


def test_threads_of_many_thousand_messages_are_no_deeper_than_others() -> None:
    long = grown([None, *range(20_000)])
    assert sum(1 for _ in draw_tree(long, 80)) == 20_002
    assert [row.folded for row in draw_graph(long, long[-1].id)] == [0, 19_999, 0]


def test_what_is_not_reached_from_a_root_is_shown_as_a_root() -> None:
    """Its parent was deleted during the listing, or does not come first."""
    messages = [msg(1, 0), msg(2, 3), msg(3, 2)]
    assert [line.split()[0] for line in draw_tree(messages, 80)][:3] == ["m00001", "m00002", "m00003"]
    assert len([row for row in draw_graph(messages, "m00002") if row.message]) == 3


def test_a_message_without_text_shows_what_it_has() -> None:
    image = Block.image(b"x", "image/png")
    call = Block.tool_call("1", "read", {"path": "x"})
    assert summarise_blocks([Block.thinking("hm"), Block.text("yes"), call]) == "yes"
    assert summarise_blocks([Block.thinking("hm"), call]) == "hm"
    assert summarise_blocks([call, Block.tool_call("2", "write", {})]).split() == ["read()", "write()"]
    assert summarise_blocks([image, Block.audio(b"x", "audio/wav")]) == "Image, Audio"
    assert summarise_blocks([]) == ""


def test_a_long_text_costs_no_more_than_its_beginning() -> None:
    assert len(summarise_blocks([Block.text("word " * 1_000_000)])) < 1_000
    assert summarise_blocks([Block.text(" \n" * 10_000 + "late"), Block.text("\ner")]) == "late er"


@pytest.mark.parametrize(
    ("file", "drawn"),
    [("first.cpeconvo", FIRST_TREE), ("later.cpeconvo", LATER_TREE)],
    ids=["first generation", "later generation"],
)
def test_imported_files_are_drawn_as_the_program_draws_them_that_wrote_them(
    file: str, drawn: str, tmp_path: Path
) -> None:
    with hitherto.open("memory:") as store:
        formats.load(write_cpe(tmp_path / "cpe") / file, store)
        messages = list(store.messages(newest_first=False))
        imported = {m.id: m.extra["imported"]["id"] for m in messages if m.extra}  # type: ignore[index]
        lines = list(draw_tree(map(make_brief, messages), 120))
    ours = [LINE.sub(lambda m: f"{m[1]}{imported[m[2]]} {m[3]}", line) for line in lines]
    assert ours == drawn.splitlines()


# -- the picture


def test_the_thread_of_the_head_stands_on_the_left_and_branches_above_where_they_part() -> None:
    messages = grown([None, 0, 1, 2, 1, 4])
    rows = list(draw_graph(messages, "m00003"))
    assert [(row.rails, row.message and row.message.id, row.words) for row in rows] == [
        ("●", "m00003", ("HEAD",)),
        ("●", "m00002", ()),
        ("│ ○", "m00005", ()),
        ("│ ○", "m00004", ()),
        ("●─┘", "m00001", ()),
        ("●", "m00000", ()),
    ]


def test_several_branches_of_one_message_end_one_after_the_other() -> None:
    rows = list(draw_graph(grown([None, 0, 0, 0]), "m00002"))
    assert [row.rails for row in rows] == ["●", "│ ○", "├─┘", "│ ○", "●─┘"]


def test_straight_runs_are_folded_and_what_has_a_label_is_not() -> None:
    messages = grown([None, *range(20)])
    messages[10] = messages[10]._replace(label="here")
    rows = list(draw_graph(messages, "m00020"))
    assert [(row.folded, row.words) for row in rows] == [(0, ("HEAD",)), (9, ()), (0, ("here",)), (9, ()), (0, ())]
    assert len(list(draw_graph(messages, "m00020", fold=False))) == 21


def test_a_label_that_a_whole_trace_has_is_said_once() -> None:
    messages = [message._replace(label="subagent:a:1") for message in grown([None, *range(20)])]
    assert [row.words for row in draw_graph(messages, None)] == [(), (), ("subagent:a:1",)]


def test_compactions_and_sub_agents_are_linked_by_words_from_both_ends() -> None:
    messages = [
        *grown([None, 0]),
        msg(2, None, link="m00001"),
        msg(3, None, link="m00000", main=False),
    ]
    words = {row.message.id: row.words for row in draw_graph(messages, "m00002") if row.message}
    assert words == {
        "m00000": ("started m00003",),
        "m00001": ("summed up by m00002",),
        "m00002": ("HEAD", "sums up m00001"),
        "m00003": ("started by m00000",),
    }
    marks = {row.message.id: row.rails for row in draw_graph(messages, "m00002") if row.message}
    assert marks == {"m00000": "●", "m00001": "●", "m00002": "●", "m00003": "○"}


def test_a_branch_off_the_main_flow_says_so() -> None:
    messages = [*grown([None, 0]), msg(2, 0, main=False), msg(3, 2, main=False)]
    rows = draw_graph(messages, "m00001")
    assert {row.message.id for row in rows if row.message and "aside" in row.words} == {"m00002"}


def parent_drawn(rows: list[Row], start: int) -> str | None:
    """The message that the rail below a message leads to, found as an eye would find it."""
    place = len(rows[start].rails.split("─")[0]) - 1
    for row in rows[start + 1 :]:
        sign = row.rails[place : place + 1]
        if sign == "┘":
            place -= 2
            sign = row.rails[place]
        if sign in "●○" and sign and row.message:
            return row.message.id
        if sign not in ("│", "├"):
            return None
    return None


@given(trees(), st.integers(0, 40))
def test_every_message_is_drawn_once_and_its_rail_leads_to_its_parent(messages: list[Brief], head: int) -> None:
    rows = list(draw_graph(messages, f"m{head:05d}", fold=False))
    assert Counter(row.message.id for row in rows if row.message) == Counter(m.id for m in messages)
    for number, row in enumerate(rows):
        if row.message:
            assert parent_drawn(rows, number) == row.message.parent


@given(trees(), st.integers(0, 40))
def test_folding_hides_neither_ends_nor_forks_and_counts_what_it_hides(messages: list[Brief], head: int) -> None:
    rows = list(draw_graph(messages, f"m{head:05d}"))
    drawn = Counter(row.message.id for row in rows if row.message)
    answers = Counter(m.parent for m in messages)
    assert all(drawn[m.id] == 1 for m in messages if answers[m.id] != 1 or m.parent is None)
    assert len(drawn) + sum(row.folded for row in rows) == len(messages)
    assert max(drawn.values(), default=1) == 1


def make_forked(size: int, forks: int, seed: int, reach: int = 60) -> list[Brief]:
    """A conversation that now and then goes back and branches."""
    chance = random.Random(seed)  # an example, not a secret
    points = set(chance.sample(range(20, size), forks))
    parents: list[int | None] = [None]
    parents += [chance.randrange(max(0, n - reach), n - 1) if n in points else n - 1 for n in range(1, size)]
    return grown(parents)


def rails(row: Row) -> int:
    return (len(row.rails.removesuffix("─┘")) + 1) // 2


@pytest.mark.parametrize("reach", [5, 60, 500])
def test_500_messages_and_30_forks_need_few_rails_and_few_lines(reach: int) -> None:
    for seed in range(20):
        messages = make_forked(500, 30, seed, reach)
        rows = list(draw_graph(messages, messages[-1].id))
        assert max(map(rails, rows)) <= 6
        assert len(rows) <= 200


@given(trees())
def test_there_are_never_more_rails_than_the_branches_have_digits(messages: list[Brief]) -> None:
    ends = len({m.id for m in messages} - {m.parent for m in messages})
    assert all(rails(row) <= ends.bit_length() + 1 for row in draw_graph(messages, "m00004"))


def test_an_example_of_the_worst_kind_needs_no_more_rails_either() -> None:
    balanced = grown([None, *((number - 1) // 2 for number in range(1, 1023))])  # 512 ends, each fork another fork
    assert max(map(rails, draw_graph(balanced, "m01022"))) == 10


def test_messages_that_cannot_be_read_are_drawn_as_such() -> None:
    saved = hitherto.Saved("user", id="abcdef", problem="the content is damaged")
    assert "(cannot be read: the content is damaged)" in next(draw_tree([make_brief(saved)], 120))
    assert make_brief(hitherto.Saved("user", Message.user("yes").blocks, id="abcdef")).summary == "yes"
