"""Codex's forks by reference, when the rollout that they go on from is imported before them, after them or never, each
from a folder of its own; with a purge, a deletion or a hold in between, and by two processes at once.

Requirements: F1; "a Codex fork and its parent give one shared prefix in either order of import".
"""

import subprocess
import sys
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Key, Message, Store, formats
from hitherto.model import Saved

from ..support.imports import bring_in, only, path_of, threads
from .test_codex import CONTEXT, FORK, Rollout, begun, told

KEY = Key(bytes(range(32)))
SECOND_FORK = "01a1f1ee-192e-7352-83aa-e14ff8bf9a6f"


@pytest.fixture(params=[None, KEY], ids=["plain", "sealed"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with hitherto.open("memory:", key=request.param) as store:
        yield store
        assert store.verify().ok


def came(message: Saved) -> Any:
    return (message.extra or {})["imported"]


def fork_of(base: Rollout, id: str, *, turns_left: int = 0) -> Rollout:
    """A rollout that goes on from another one, before its last turns: each has seven lines."""
    end = base._next - 7 * turns_left
    at = {"thread_id": base.id, "end_ordinal_exclusive": end, "end_byte_offset": 1}
    return Rollout(id, first=end, forked_from_id=base.id, history_base=at)


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """A base, a fork of it before its last turn, and a fork of the fork: none finds another in its folder."""
    base = begun().turn(1).turn(2)
    fork = fork_of(base, FORK, turns_left=1).turn(3).turn(4)
    second = fork_of(fork, SECOND_FORK, turns_left=1).turn(5)
    made = {"base": base, "fork": fork, "second": second}
    return {name: rollout.put(tmp_path / name) for name, rollout in made.items()}


# The middle one comes last in the others: then its two neighbours are two conversations already.
ORDERS = [one for one in permutations(["base", "fork", "second"]) if one[-1] != "fork"]
WHOLE = {(*CONTEXT, *told(1, 2)), (*CONTEXT, *told(1, 3, 4)), (*CONTEXT, *told(1, 3, 5))}


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_forks_go_below_what_they_name_in_any_order(
    order: tuple[str, ...], store: Store, paths: dict[str, Path]
) -> None:
    for name in order:
        bring_in(paths[name], store, "codex")  # each of them twice: the second time adds nothing
    assert threads(only(store)) == WHOLE
    assert sum(m.usage.input_tokens for m in store.messages() if m.usage) == 500
    assert all(formats.load(paths[name], store).messages == 0 for name in order)
    assert threads(only(store)) == WHOLE


def test_a_fork_that_came_first_says_what_was_moved_and_stays_the_newest(store: Store, paths: dict[str, Path]) -> None:
    waiting = bring_in(paths["fork"], store, "codex").waiting
    assert ["goes on from rollout" in one.reason for one in waiting] == [True]
    times = {m.text: m.created_us for m in store.messages()}
    (note,) = formats.load(paths["base"], store).notes
    assert note.partition(": ")[2].startswith("6 messages moved below the one that they continue")
    assert path_of(only(store)) == (*CONTEXT, *told(1, 3, 4))
    for message in store.messages():
        if message.text in ("q3", "a4"):
            assert came(message)["at"] == times[message.text]


def test_messages_written_here_and_images_move_along(store: Store, tmp_path: Path) -> None:
    base, picture = begun().turn(1), "data:image/png;base64," + "iVBORw0KGgo" * 20_000
    fork = fork_of(base, FORK).turn(3)
    fork.item(type="message", role="user", content=[{"type": "input_image", "image_url": picture}])
    bring_in(fork.put(tmp_path / "fork"), store, "codex")
    talk = only(store)
    talk.append(Message.user("Go on."))
    talk.fork().append(Message.user("Or so?"))
    talk.compact("In short: a3.")
    before = list(store.messages())
    bring_in(base.put(tmp_path / "base"), store, "codex")
    found = threads(only(store))
    assert {path[-1] for path in found} == {"U:Or so?", "U:In short: a3."}  # and below it: what it sums up
    assert {path[: len(CONTEXT) + 6] for path in found if "U:Or so?" in path} == {(*CONTEXT, *told(1, 3))}
    [summary] = [m for m in store.messages() if m.text == "In short: a3."]
    assert [m.text for m in store.messages() if m.id == summary.link] == ["Go on."]
    [image] = [b for m in store.messages() for b in m.blocks if b.mime_type == "image/png"]
    [old] = [b for m in before for b in m.blocks if b.mime_type == "image/png"]
    assert image.content == old.content


def test_a_fork_that_was_purged_stays_away_and_its_base_comes(store: Store, paths: dict[str, Path]) -> None:
    bring_in(paths["fork"], store, "codex")
    store.purge(only(store), reason="user-requested")
    assert bring_in(paths["base"], store, "codex").purged == 0  # nobody purged what was never here
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2))}
    assert formats.load(paths["fork"], store).purged == 1
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2))}
    assert formats.load(paths["fork"], store, even_purged=True).messages == 6
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2)), (*CONTEXT, *told(1, 3, 4))}


def test_a_tree_that_was_purged_whole_stays_away_with_all_its_files(store: Store, paths: dict[str, Path]) -> None:
    bring_in(paths["fork"], store, "codex")
    bring_in(paths["base"], store, "codex")
    store.purge(only(store), reason="user-requested")
    assert [formats.load(paths[name], store).purged for name in ("base", "fork")] == [1, 1]
    assert list(store.conversations()) == []


def test_messages_that_were_deleted_here_do_not_come_back_by_moving(store: Store, paths: dict[str, Path]) -> None:
    bring_in(paths["fork"], store, "codex")
    [question] = [m for m in store.messages() if m.text == "q4"]
    store.delete([question.id], recursive=True)
    bring_in(paths["base"], store, "codex")
    bring_in(paths["fork"], store, "codex")
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2)), (*CONTEXT, *told(1, 3))}


def test_nothing_is_moved_while_the_conversation_is_on_hold(store: Store, paths: dict[str, Path]) -> None:
    bring_in(paths["fork"], store, "codex")
    only(store).hold()
    (note,) = formats.load(paths["base"], store).notes
    assert note.partition(": ")[2].startswith("1 trees could not be moved")
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2)), told(3, 4)}
    only(store).release()
    formats.load(paths["base"], store)
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2)), (*CONTEXT, *told(1, 3, 4))}


def test_a_base_that_is_not_there_to_the_place_moves_nothing_yet(store: Store, paths: dict[str, Path]) -> None:
    bring_in(paths["fork"], store, "codex")
    whole = paths["base"].read_bytes()
    lines = whole.splitlines(keepends=True)
    paths["base"].write_bytes(b"".join(lines[:6]))
    bring_in(paths["base"], store, "codex")
    assert told(3, 4) in threads(only(store))
    paths["base"].write_bytes(whole)
    bring_in(paths["base"], store, "codex")
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2)), (*CONTEXT, *told(1, 3, 4))}


IMPORT = """
import sys, hitherto
with hitherto.open(sys.argv[1]) as store:
    sys.stdin.readline()
    hitherto.formats.load(sys.argv[2], store)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_processes_that_import_at_once_make_one_tree(attempt: int, tmp_path: Path, paths: dict[str, Path]) -> None:
    place = tmp_path / "store.db"
    hitherto.open(place).close()
    command = [sys.executable, "-c", IMPORT, str(place)]
    chosen = [paths["base"], paths["fork"]] * 2
    started = [subprocess.Popen([*command, str(path)], stdin=subprocess.PIPE) for path in chosen]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(60) for process in started] == [0] * len(started)
    with hitherto.open(place) as store:
        assert threads(only(store)) == {(*CONTEXT, *told(1, 2)), (*CONTEXT, *told(1, 3, 4))}
        assert store.verify().ok
