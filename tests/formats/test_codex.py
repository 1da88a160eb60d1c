"""Codex CLI's rollouts, in four generations; forks by copy and by reference in either order; rolled-back turns,
compactions, sub-agents, tokens.

The lines have the shapes that Codex 0.20, 0.98 and 0.169 write. Requirements: F1.
"""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Store, formats
from hitherto.errors import PartialImport
from hitherto.formats._files import open_files
from hitherto.formats._types import PortableConversation
from hitherto.formats.importers import codex
from hitherto.model import Usage
from hitherto.snapshots import Unreadable

from ..support.imports import bring_in, native, only, path_of, put_lines, threads, why_injected

DAY = "2026/11/19"
FIRST, FORK, AGENT = (f"01a1f1e{n}-192e-7352-83aa-e14ff8bf9a6f" for n in "c9d")
Line = dict[str, Any]


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


class Rollout:
    """Lines as Codex writes them, with ordinals if `paginated`."""

    def __init__(self, id: str = FIRST, *, paginated: bool = True, first: int = 0, **meta: object) -> None:
        self.id, self._paginated, self._next, self.lines = id, paginated, first, list[Line]()
        self.total = [0, 0, 0]
        told = {"id": id, "timestamp": "2026-11-19T03:49:04.434Z", "cwd": "/srv/app", "cli_version": "0.169.0"}
        git = {"git": {"branch": "main"}, "model_provider": "openai", "base_instructions": {"text": "Be brief."}}
        self.add("session_meta", {**told, **git, **({"history_mode": "paginated"} if paginated else {}), **meta})

    def add(self, kind: str, payload: Line) -> "Rollout":
        ordinal = {"ordinal": self._next} if self._paginated else {}
        time = f"2026-11-19T03:49:{self._next % 60:02}.{len(self.lines):03}Z"
        self.lines.append({"timestamp": time, **ordinal, "type": kind, "payload": payload})
        self._next += 1
        return self

    def item(self, **item: object) -> "Rollout":
        return self.add("response_item", item)

    def event(self, kind: str, **more: object) -> "Rollout":
        return self.add("event_msg", {"type": kind, **more})

    def user(self, text: str) -> "Rollout":
        self.item(type="message", role="user", content=[{"type": "input_text", "text": text}])
        return self.event("user_message", message=text, images=[])

    def answer(self, text: str, *, input: int = 100, output: int = 5) -> "Rollout":
        self.item(
            type="reasoning", summary=[{"type": "summary_text", "text": f"about {text}"}], encrypted_content="ZW5j"
        )
        self.event("agent_reasoning", text=f"about {text}")
        self.item(type="message", role="assistant", content=[{"type": "output_text", "text": text}])
        self.event("agent_message", message=text)
        return self.count(input, output)

    def count(self, input: int, output: int) -> "Rollout":
        self.total = [self.total[0] + input, self.total[1] + 10, self.total[2] + output]
        usage = [dict(zip(("input_tokens", "cached_input_tokens", "output_tokens"), n, strict=True))
                 for n in (self.total, (input, 10, output))]  # fmt: skip
        return self.event("token_count", info={"total_token_usage": usage[0], "last_token_usage": usage[1]})

    def call(self, id: str, name: str, output: str) -> "Rollout":
        self.item(type="function_call", name=name, arguments='{"cmd":"ls"}', call_id=id)
        return self.item(type="function_call_output", call_id=id, output=output)

    def turn(self, n: int) -> "Rollout":
        return (
            self.add("turn_context", {"cwd": "/srv/app", "model": "gpt-5", "turn_id": f"turn {n}"})
            .user(f"q{n}")
            .answer(f"a{n}")
        )

    def put(self, folder: Path, *, name: str = "") -> Path:
        return put_lines(folder / DAY / (name or f"rollout-2026-11-19T03-49-04-{self.id}.jsonl"), self.lines)


def begun(**meta: object) -> Rollout:
    found = Rollout(**meta)  # type: ignore[arg-type]  # as it is called here
    found.item(type="message", role="developer", content=[{"type": "input_text", "text": "<permissions instructions>"}])
    return found.user("<environment_context>\n  <cwd>/srv/app</cwd>\n</environment_context>")


CONTEXT = ("E:<permissions instructions>", "U:<environment_context>\n  <cwd>/srv/app</cwd>\n</environment_context>")


def told(*turns: int) -> tuple[str, ...]:
    return tuple(line for n in turns for line in (f"U:q{n}", f"A:(about a{n})", f"A:a{n}"))


@pytest.mark.parametrize("paginated", [False, True])
def test_messages_calls_reasoning_and_tokens(paginated: bool, store: Store, tmp_path: Path) -> None:
    rollout = begun(paginated=paginated).turn(1).call("c1", "exec_command", "a.py").turn(2).count(0, 0)
    rollout.event("token_count", info=None).event("quark", spin=1)
    report = bring_in(rollout.put(tmp_path), store, "codex")
    found = only(store)
    assert threads(found) == {(*CONTEXT, *told(1), "A:C:exec_command", "R:a.py", *told(2))}
    thread = found.thread(events=True)
    assert [why_injected(m) for m in thread[:3]] == ["context", "context", None]
    assert [m.usage for m in thread if m.usage] == [Usage(100, 5, 10), Usage(100, 5, 10)]
    assert thread[3].raw["encrypted_content"] == "ZW5j"  # type: ignore[index]  # an item
    assert native(thread[3])["type"] == "response_item"
    assert (found.title, found.project, found.metadata["git_branch"]) == ("q1", "/srv/app", "main")
    assert found.metadata["source_version"] == "0.169.0"
    assert {(c.setup.provider, c.setup.model, c.setup.system_prompt) for c in found.setups()} == {
        ("openai", "gpt-5", "Be brief.")
    }
    assert report.unknown == {"event_msg/quark": 1}
    assert "event_msg/agent_message" not in report.bookkeeping  # it says what an item says


def test_tokens_may_be_counted_before_the_answer_is_written(store: Store, tmp_path: Path) -> None:
    """So does 0.42: the count, the items of the answer, the same count again."""
    rollout = Rollout(paginated=False).user("q")
    for n in range(2):
        rollout.count(100 + n, 5).item(type="reasoning", summary=[], encrypted_content="x")
        rollout.call(f"c{n}", "shell", "ok").lines.append(rollout.lines[-4])
    bring_in(rollout.put(tmp_path), store, "codex")
    used = [message.usage.input_tokens for message in only(store).thread() if message.usage]
    assert used == [100, 101]


def test_the_early_generation_has_bare_lines(store: Store, tmp_path: Path) -> None:
    lines: list[Line] = [
        {"id": FIRST, "timestamp": "2025-08-01T10:00:00.000Z", "instructions": "Be kind.", "git": {"branch": "dev"}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    ]
    bring_in(put_lines(tmp_path / "old.jsonl", lines), store, "codex")
    assert threads(only(store)) == {("U:q", "A:()", "A:a")}
    assert only(store).thread()[0].created_us == 1_754_042_400_000_000


def test_a_compressed_file_is_read(store: Store, tmp_path: Path) -> None:
    plain = begun().turn(1).put(tmp_path)
    packed = plain.with_name(plain.name + ".zst")
    packed.write_bytes(zstandard.compress(plain.read_bytes()))
    plain.unlink()
    bring_in(packed, store, "codex")
    assert path_of(only(store)) == (*CONTEXT, *told(1))
    data = packed.read_bytes()
    packed.write_bytes(data[: len(data) // 2])
    [*_, last] = codex.FORMAT.read_files(open_files(packed), [packed.name])
    assert isinstance(last, Unreadable)
    assert "cannot be read to its end" in last.reason


def test_turns_that_were_rolled_back_are_a_branch(store: Store, tmp_path: Path) -> None:
    rollout = begun().turn(1).turn(2).turn(3).event("thread_rolled_back", num_turns=2).turn(4)
    bring_in(rollout.put(tmp_path), store, "codex")
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2, 3)), (*CONTEXT, *told(1, 4))}
    assert path_of(only(store)) == (*CONTEXT, *told(1, 4))


def test_what_was_rolled_back_last_is_not_the_head(store: Store, tmp_path: Path) -> None:
    bring_in(begun().turn(1).turn(2).event("thread_rolled_back", num_turns=1).put(tmp_path), store, "codex")
    assert path_of(only(store)) == (*CONTEXT, *told(1))
    with hitherto.open("memory:") as other:
        bring_in(begun().turn(1).event("thread_rolled_back", num_turns=9).put(tmp_path / "b"), other, "codex")
        assert path_of(only(other)) == CONTEXT


def test_a_compaction_is_a_root_that_is_linked(store: Store, tmp_path: Path) -> None:
    rollout = (
        begun().turn(1).add("compacted", {"message": "We did a1.", "replacement_history": []}).count(50, 7).turn(2)
    )
    bring_in(rollout.put(tmp_path), store, "codex")
    everything = list(store.messages(newest_first=False))
    [summary] = [m for m in everything if why_injected(m) == "summary"]
    [before] = [m for m in everything if m.text == "a1"]
    assert (summary.text, summary.parent, summary.link) == ("We did a1.", None, before.id)
    assert summary.usage == Usage(50, 7, 10)
    assert path_of(only(store)) == ("U:We did a1.", *told(2))


@pytest.mark.parametrize("child_first", [False, True])
def test_a_fork_by_copy_shares_what_it_copied(child_first: bool, store: Store, tmp_path: Path) -> None:
    parent = begun(paginated=False).turn(1).turn(2)
    child = Rollout(FORK, paginated=False, forked_from_id=FIRST)
    child.lines += [{**line, "timestamp": "2026-11-19T05:00:00.000Z"} for line in parent.lines]
    child.total = parent.total
    child.turn(3)
    parent.turn(4)
    paths = [parent.put(tmp_path / "a"), child.put(tmp_path / "b")]
    for path in reversed(paths) if child_first else paths:
        bring_in(path, store, "codex")
    found = only(store)
    assert threads(found) == {(*CONTEXT, *told(1, 2, 3)), (*CONTEXT, *told(1, 2, 4))}
    assert sum(m.usage.input_tokens for m in store.messages() if m.usage) == 400


@pytest.mark.parametrize("order", [("parent", "child"), ("child", "parent"), ("both",)])
def test_a_fork_by_reference_goes_below_what_it_names(order: tuple[str, ...], store: Store, tmp_path: Path) -> None:
    parent = begun().turn(1).turn(2)
    at = {"thread_id": FIRST, "end_ordinal_exclusive": parent._next - 7, "end_byte_offset": 1}
    child = Rollout(FORK, first=parent._next - 7, forked_from_id=FIRST, history_base=at).turn(3)
    paths = {
        "both": tmp_path,
        "parent": parent.put(tmp_path / "sessions"),
        "child": child.put(tmp_path / "archived_sessions"),
    }
    for name in order:
        bring_in(paths[name], store, "codex")
    assert threads(only(store)) == {(*CONTEXT, *told(1, 2)), (*CONTEXT, *told(1, 3))}


def test_a_fork_whose_parent_is_missing_says_so(store: Store, tmp_path: Path) -> None:
    at = {"thread_id": FIRST, "end_ordinal_exclusive": 9}
    path = Rollout(FORK, first=9, forked_from_id=FIRST, history_base=at).turn(3).put(tmp_path)
    report = bring_in(path, store, "codex")
    assert ["goes on from rollout" in one.reason for one in report.waiting] == [True]
    assert threads(only(store)) == {told(3)}
    begun().turn(1).put(tmp_path)
    assert formats.load(tmp_path, store).messages == 5  # what came before is known now, and nothing is there twice


def test_a_sub_agent_is_linked_to_the_call_that_started_it(store: Store, tmp_path: Path) -> None:
    begun().turn(1).call("c1", "spawn_agent", f'{{"agent_id":"{AGENT}"}}').turn(2).put(tmp_path)
    source = {"subagent": {"thread_spawn": {"parent_thread_id": FIRST, "depth": 1, "agent_role": "explorer"}}}
    agent = begun(id=AGENT, source=source).turn(7)  # it gets the same context as the thread that starts it
    agent.put(tmp_path, name=f"rollout-2026-11-19T04-00-00-{AGENT}.jsonl")
    report = bring_in(tmp_path, store, "codex")
    assert report.new == 1
    everything = {m.text: m for m in store.messages()}
    assert (everything["q7"].label, everything["q7"].main) == (f"subagent:explorer:{AGENT}", False)
    [call] = [m for m in store.messages() if any(b.tool_name == "spawn_agent" for b in m.blocks)]
    [*_, root] = [m for m in store.messages() if m.label and m.parent is None]
    assert (root.link, root.text) == (call.id, "<permissions instructions>")
    assert path_of(only(store))[-1] == "A:a2"


def test_a_sub_agent_with_its_parents_history_begins_where_its_own_turns_do(store: Store, tmp_path: Path) -> None:
    parent = begun(paginated=False).turn(1)
    source = {"subagent": {"thread_spawn": {"parent_thread_id": FIRST}}}
    child = Rollout(AGENT, paginated=False, source=source)
    child.lines += parent.lines
    child.add("turn_context", {"turn_id": "01a1f1ed-5000-7352-83aa-e14ff8bf9a6f", "model": "gpt-5"}).turn(7)
    parent.turn(2).put(tmp_path)
    child.put(tmp_path, name=f"rollout-2026-11-19T04-00-00-{AGENT}.jsonl")
    bring_in(tmp_path, store, "codex")
    labels = {m.text: m.label for m in store.messages()}
    assert (labels["q1"], labels["q7"]) == (None, f"subagent:agent:{AGENT}")
    assert path_of(only(store)) == (*CONTEXT, *told(1, 2))


def test_a_growing_file_gives_its_tail_and_waits_for_half_a_line(store: Store, tmp_path: Path) -> None:
    rollout = begun().turn(1)
    path = rollout.put(tmp_path)
    bring_in(path, store, "codex")
    rollout.turn(2).put(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    report = formats.load(path, store)
    assert (report.messages, len(report.waiting), report.unreadable) == (3, 1, ())
    path.write_bytes(whole)
    assert formats.load(path, store).messages == 0
    assert path_of(only(store)) == (*CONTEXT, *told(1, 2))


def test_names_of_threads_are_taken_over(store: Store, tmp_path: Path) -> None:
    begun().turn(1).put(tmp_path / "sessions")
    names = [{"id": FIRST, "thread_name": "old"}, {"id": FIRST, "thread_name": "The build"}]
    put_lines(tmp_path / "session_index.jsonl", names)
    bring_in(tmp_path / "sessions", store, "codex")
    assert only(store).title == "The build"


def test_a_long_rollout_comes_in_parts(tmp_path: Path) -> None:
    rollout = begun()
    for n in range(400):
        rollout.turn(n)
    path = rollout.event("thread_rolled_back", num_turns=3).put(tmp_path)
    found = list(codex.FORMAT.read_files(open_files(path), [path.name]))
    assert len(found) > 2
    assert all(isinstance(part, PortableConversation) and len(part.messages) <= 500 for part in found)
    with hitherto.open("memory:") as store:
        bring_in(path, store, "codex")
        assert path_of(only(store))[-1] == "A:a396"


ODD = st.sampled_from(["response_item", "event_msg", "compacted", "turn_context", "session_meta", "odd", None, 7])
VALUES: st.SearchStrategy[object] = st.none() | st.integers(-5, 2**70) | st.text(max_size=3) | st.just([{"type": "x"}])
NAMES = st.sampled_from(["type", "role", "content", "info", "num_turns", "id", "message"])
PAYLOADS = st.dictionaries(NAMES, VALUES, max_size=4)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(ODD, PAYLOADS | VALUES), max_size=6))
def test_lines_of_any_shape_are_no_failure(odd: list[tuple[Any, Any]]) -> None:
    rollout = begun().turn(1)
    for kind, payload in odd:
        rollout.add(kind, payload)
    with tempfile.TemporaryDirectory() as folder, hitherto.open("memory:") as store:
        with suppress(PartialImport):
            formats.load(rollout.turn(2).put(Path(folder)), store)
        assert {"q1", "a1", "q2", "a2"} <= {message.text for message in store.messages()}


TURNS = st.lists(st.integers(0, 3), min_size=1, max_size=8)  # 0: a turn; else so many turns are taken back


@settings(max_examples=20, deadline=None)
@given(TURNS)
def test_every_turn_is_kept_however_often_some_are_rolled_back(steps: list[int]) -> None:
    rollout, path, alive = begun(), list[int](), set[int]()
    for n, step in enumerate(steps):
        if step:
            rollout.event("thread_rolled_back", num_turns=step)
            del path[max(0, len(path) - step) :]
        else:
            rollout.turn(n)
            path.append(n)
            alive.add(n)
    with tempfile.TemporaryDirectory() as folder, hitherto.open("memory:") as store:
        bring_in(rollout.put(Path(folder)), store, "codex")
        found = only(store)
        assert {m.text for m in store.messages() if m.role == "assistant" and m.text} == {f"a{n}" for n in alive}
        assert path_of(found) == (*CONTEXT, *told(*path))
