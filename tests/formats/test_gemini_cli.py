"""Gemini CLI's sessions: one object, or lines that replace, reset and rewind; results inside of records.

The lines have the shapes that Gemini CLI 0.61 writes. Requirements: F1.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Store, formats
from hitherto.formats.importers import gemini_cli
from hitherto.model import Usage

from ..support.imports import bring_in, native, only, path_of, put_json, put_lines, threads, why_injected

SESSION = "271764f4-af36-43a1-8ee6-4bf81227ff81"
HEAD = {"sessionId": SESSION, "projectHash": "084e", "startTime": "2026-08-19T04:04:24.093Z", "kind": "main"}
CONTEXT = "<session_context>\nThis is the Gemini CLI."


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


def user(id: str, text: str) -> dict[str, Any]:
    return {"id": id, "timestamp": "2026-08-19T04:04:25Z", "type": "user", "content": [{"text": text}]}


def gemini(id: str, text: str, *calls: dict[str, object], **more: object) -> dict[str, Any]:
    tokens = {"input": 100, "output": 7, "cached": 10, "thoughts": 3, "tool": 0, "total": 110}
    found = {"id": id, "timestamp": "2026-08-19T04:04:26Z", "type": "gemini", "content": text, "tokens": tokens}
    thoughts = [{"subject": "Plan", "description": f"of {id}"}]
    return found | {"thoughts": thoughts, "model": "gemini-3"} | ({"toolCalls": list(calls)} if calls else {}) | more


def call(id: str, output: str | None = None, status: str = "success") -> dict[str, Any]:
    answer = {"functionResponse": {"id": id, "name": "ls", "response": {"output": output}}}
    result = {} if output is None else {"result": [answer], "resultDisplay": "shown"}
    return {"id": id, "name": "ls", "args": {"path": "."}, "status": status, **result}


def response(id: str, call: str, output: str) -> dict[str, Any]:
    part = {"functionResponse": {"id": call, "name": "ls", "response": {"output": output}}}
    return {"id": id, "type": "user", "content": [part]}


def says(id: str) -> str:
    return f"A:(Plan\n\nof {id})"


def test_lines_replace_and_results_are_told_once(store: Store, tmp_path: Path) -> None:
    lines = [
        HEAD, {"$set": {"messages": [user("c", CONTEXT)]}}, user("u", "look"), {"$set": {"lastUpdated": "x"}},
        gemini("g", ""), gemini("g", "", call("t", "a.py")), response("r", "t", "a.py"), gemini("h", "One file."),
        {"id": "i", "type": "info", "content": "saved"}, {"odd": 1},
    ]  # fmt: skip
    path = put_lines(tmp_path / "tmp" / "app" / "chats" / "session-1.jsonl", lines)
    (tmp_path / "tmp" / "app" / ".project_root").write_text("/srv/app")
    report = bring_in(tmp_path, store, "gemini-cli")
    found = only(store)
    assert threads(found) == {
        (f"U:{CONTEXT}", "U:look", f"{says('g')}C:ls", "R:a.py", f"{says('h')}One file.", "E:saved")
    }
    thread = found.thread(events=True)
    assert [why_injected(m) for m in thread] == ["context", None, None, None, None, "hidden"]
    assert thread[2].usage == Usage(100, 10, 10, 0, 3)
    assert native(thread[2])["toolCalls"][0]["resultDisplay"] == "shown"
    assert thread[3].blocks[0].id == thread[2].blocks[1].id == "t"
    assert (found.project, found.title, report.unknown) == ("/srv/app", "look", {"line without a type": 1})
    assert {change.setup.model for change in found.setups()} == {"gemini-3"}
    assert path.exists()


def test_what_was_rewound_is_a_branch(store: Store, tmp_path: Path) -> None:
    lines = [
        HEAD,
        user("u", "a"),
        gemini("g", "b"),
        user("v", "c"),
        gemini("h", "d"),
        {"$rewindTo": "v"},
        user("w", "e"),
    ]
    bring_in(put_lines(tmp_path / "f", lines), store, "gemini-cli")
    start = ("U:a", f"{says('g')}b")
    assert threads(only(store)) == {(*start, "U:c", f"{says('h')}d"), (*start, "U:e")}
    assert path_of(only(store)) == (*start, "U:e")
    with hitherto.open("memory:") as other:
        bring_in(put_lines(tmp_path / "g", lines[:-1]), other, "gemini-cli")
        assert path_of(only(other)) == start


def test_a_list_that_is_set_anew_says_where_the_session_stands(store: Store, tmp_path: Path) -> None:
    """A resumed session sets all messages again, in other words and without their tokens."""
    again = [user("u", "a"), {"id": "g", "type": "gemini", "content": [{"text": "b"}]}]
    lines = [HEAD, user("u", "a"), gemini("g", "b"), user("v", "lost?"), HEAD, {"$set": {"messages": []}}]
    lines += [{"$set": {"messages": again}}, user("w", "c")]
    bring_in(put_lines(tmp_path / "f", lines), store, "gemini-cli")
    start = ("U:a", f"{says('g')}b")
    assert threads(only(store)) == {(*start, "U:lost?"), (*start, "U:c")}
    assert only(store).thread()[1].usage is not None


def test_a_record_that_grew_is_brought_up_to_date(store: Store, tmp_path: Path) -> None:
    path = put_lines(tmp_path / "f", [HEAD, user("u", "a"), gemini("g", "")])
    bring_in(path, store, "gemini-cli")
    put_lines(path, [HEAD, user("u", "a"), gemini("g", ""), gemini("g", "", call("t", "x")), gemini("h", "b")])
    bring_in(path, store, "gemini-cli")
    assert threads(only(store)) == {("U:a", f"{says('g')}C:ls", "R:x", f"{says('h')}b")}


def test_the_earlier_form_is_one_object(store: Store, tmp_path: Path) -> None:
    body = HEAD | {"messages": [user("u", "a"), gemini("g", "b", call("t", "boom", "error"))], "summary": "A talk"}
    bring_in(put_json(tmp_path / "f", body), store, "gemini-cli")
    assert threads(only(store)) == {("U:a", f"{says('g')}bC:ls", "R:boom")}
    assert (only(store).title, only(store).thread()[2].tool_result_error) == ("A talk", True)


def test_pictures_and_odd_parts_are_kept(store: Store, tmp_path: Path) -> None:
    parts: list[object] = [
        "see",
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}},
        {"hologram": {"a": 1}},
        7,
    ]
    bring_in(put_lines(tmp_path / "f", [HEAD, {"id": "u", "type": "user", "content": parts}]), store, "gemini-cli")
    blocks = only(store).thread()[0].blocks
    assert [(b.type, b.modality) for b in blocks[:3]] == [
        ("content", "text"),
        ("content", "image"),
        ("hologram", "text"),
    ]
    assert blocks[1].content == b"\x89PNG"


def test_a_sub_agent_hangs_at_the_call_that_started_it(store: Store, tmp_path: Path) -> None:
    chats = tmp_path / "chats"
    put_lines(
        chats / "session-1.jsonl", [HEAD, user("u", "a"), gemini("g", "", {**call("t", "done"), "agentId": "ag1"})]
    )
    about = {**HEAD, "sessionId": "sub", "kind": "subagent"}
    put_lines(chats / SESSION / "ag1.jsonl", [about, user("su", "task"), gemini("sg", "found")])
    bring_in(tmp_path, store, "gemini-cli")
    everything = {m.text: m for m in store.messages()}
    assert (everything["task"].label, everything["task"].main) == ("subagent:gemini:ag1", False)
    assert everything["task"].link == next(
        m.id for m in store.messages() if any(b.type == "tool_call" for b in m.blocks)
    )


def test_a_saved_list_of_contents_is_read(store: Store, tmp_path: Path) -> None:
    contents = [
        {"role": "user", "parts": [{"text": "look"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "ls", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "a.py"}}}]},
    ]
    bring_in(put_json(tmp_path / "checkpoint-a.json", contents), store, "gemini-cli")
    contents.append({"role": "model", "parts": [{"text": "One."}]})
    body = {"history": contents, "authType": "x"}
    assert bring_in(put_json(tmp_path / "b.json", body), store, "gemini-cli").messages == 1
    assert path_of(only(store))[-1] == "A:One."
    assert only(store).thread()[3].raw == contents[3]


@pytest.mark.parametrize(
    ("written", "days"),
    [(None, 30), ({"maxAge": "7d"}, 7), ({"enabled": False}, None), ({"maxAge": "2w", "enabled": True}, 14), (7, 30)],
)
def test_the_age_at_which_sessions_go_is_in_the_settings(written: object, days: int | None, tmp_path: Path) -> None:
    if written is not None:
        put_json(tmp_path / ".gemini" / "settings.json", {"general": {"sessionRetention": written}})
    assert gemini_cli.FORMAT.retention_days({}, tmp_path) == days
    assert list(gemini_cli.FORMAT.places({}, tmp_path)) == [tmp_path / ".gemini" / "tmp"]


STEPS = st.lists(st.tuples(st.sampled_from(["say", "rewind", "set", "again"]), st.integers(0, 6)), max_size=10)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_every_message_is_kept_whatever_is_taken_back(steps: list[tuple[str, int]]) -> None:
    lines, path, said = list[object]([HEAD]), list[str](), list[str]()
    for n, (kind, which) in enumerate(steps):
        if kind == "rewind" and path:
            at = which % len(path)
            lines.append({"$rewindTo": path[at]})
            del path[at:]
        elif kind == "set":
            del path[which:]
            lines.append({"$set": {"messages": [user(id, id) for id in path]}})
        elif kind == "again" and path:
            lines.append(user(path[-1], path[-1]))
        else:
            lines.append(user(f"m{n}", f"m{n}"))
            path.append(f"m{n}")
            said.append(f"m{n}")
    with tempfile.TemporaryDirectory() as folder, hitherto.open("memory:") as store:
        report = formats.load(put_lines(Path(folder, "f"), lines), store)
        assert report.messages == len(said)
        assert sorted(m.text for m in store.messages()) == sorted(said)
        if path:
            assert path_of(only(store)) == tuple(f"U:{id}" for id in path)
