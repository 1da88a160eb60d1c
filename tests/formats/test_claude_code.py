"""Sessions of Claude Code: what the program writes, and what older versions wrote.

`tests/data/programs/claude-code` was written by Claude Code 2.1.197 against a scripted provider on loopback: a session
with two parallel calls, a sub-agent and a compaction, and a fork of it. The texts of its attachments are left out.

Requirements: F1, F2.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Conversation, Key, Saved, Store, formats
from hitherto.dialects import dialect
from hitherto.errors import PartialImport
from hitherto.formats.importers import claude_code
from hitherto.ids import RUN

PROGRAM = Path(__file__).parents[1] / "data" / "programs" / "claude-code"
SESSION = "5e551011-0000-4000-8000-000000000001"
OTHER = "5e551011-0000-4000-8000-000000000002"


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


def u(n: int) -> str:
    return f"00000000-0000-4000-8000-{n:012d}"


class Session:
    """Lines of a session, as the program writes them."""

    def __init__(self, session: str = SESSION, **more: object) -> None:
        self.session, self.more, self.lines = session, more, list[str]()
        self.answers = 0

    def add(self, n: int, parent: int | None, kind: str, **fields: object) -> "Session":
        line = {
            "parentUuid": None if parent is None else u(parent), "isSidechain": False, "sessionId": self.session,
            "cwd": "/home/ada/proj", "gitBranch": "main", "version": "2.1.0", "userType": "external", "uuid": u(n),
            "timestamp": f"2026-11-01T10:{n // 60 % 60:02d}:{n % 60:02d}.000Z", "type": kind, **self.more, **fields,
        }  # fmt: skip
        self.lines.append(json.dumps(line))
        return self

    def user(self, n: int, parent: int | None, content: Any, **fields: object) -> "Session":
        return self.add(n, parent, "user", message={"role": "user", "content": content}, **fields)

    def answer(
        self, n: int, parent: int | None, *content: Any, id: str = "", out: int = 5, **fields: object
    ) -> "Session":
        blocks = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
        message = {
            "id": id or f"msg_{n}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": blocks, "stop_reason": None, "usage": {"input_tokens": 10, "output_tokens": out},
        }  # fmt: skip
        return self.add(n, parent, "assistant", message=message, **fields)

    def note(self, **fields: object) -> "Session":
        self.lines.append(json.dumps({"sessionId": self.session, **fields}))
        return self

    def write(self, path: Path, end: str = "\n") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(self.lines) + end)
        return path


def call(id: str, name: str = "Bash", **given: object) -> dict[str, object]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def result(id: str, text: str = "ok", **more: object) -> list[dict[str, object]]:
    return [{"type": "tool_result", "tool_use_id": id, "content": text, **more}]


def one(store: Store) -> Conversation:
    (info,) = store.conversations(limit=10).items
    return store.conversation(info.id)


def shown(message: Saved) -> str:
    calls = "".join(f"[{block.id}]" for block in message.blocks if block.type == "tool_call")
    return message.text + calls


def threads(store: Store) -> set[tuple[str, ...]]:
    """Every thread, from its root to its leaf."""
    found = set()
    for info in store.conversations(limit=50):
        talk = store.conversation(info.id)
        found |= {tuple(shown(m) for m in talk.fork(at=leaf.id).thread()) for leaf in talk.branches()}
    return found


def by_text(store: Store) -> dict[str, Saved]:
    return {shown(message): message for message in store.messages()}


# -- files of the program


def test_what_the_program_writes_is_one_tree_with_all_of_it(store: Store) -> None:
    report = formats.load(PROGRAM, store)
    assert (report.format, report.new, report.messages, report.subagents) == ("claude-code", 1, 23, 1)
    assert report.unknown == {}
    talk = one(store)
    assert talk.project == "/home/ada/proj"
    assert talk.metadata["source_version"] == "2.1.197"
    found = by_text(store)
    answer = next(m for t, m in found.items() if t.startswith("I will look."))
    assert [block.type for block in answer.blocks] == ["thinking", "content", "tool_call", "tool_call"]
    assert answer.usage is not None
    assert (answer.usage.output_tokens, answer.usage.input_tokens) == (22, 114)
    assert found["two"].parent == found["one"].id  # results of parallel calls follow each other
    assert found["one"].parent == answer.id
    trace = found["Find the answer in the sub."]
    assert (trace.main, trace.label) == (False, "subagent:general-purpose:a2db0a23a9cb4c732")
    assert trace.link == next(m.id for t, m in found.items() if t.startswith("I ask a helper."))
    summary = next(m for t, m in found.items() if t.startswith("This session is being continued"))
    assert (summary.parent, summary.link) == (None, found["done after tool 6"].id)
    assert (summary.extra or {})["injected"] == "summary"
    assert found["answer 7 to: after the fork"].main
    assert formats.load(PROGRAM, store).messages == 0
    assert store.verify().ok


@pytest.mark.parametrize("first", ["d3d662c8", "e4c709a0"])
def test_a_session_and_its_fork_are_one_in_either_order(store: Store, first: str) -> None:
    files = sorted(PROGRAM.rglob("????????-*.jsonl"), key=lambda path: not path.name.startswith(first))
    for path in files:
        formats.load(path, store)
    assert store.stats().conversations == 1
    assert store.stats().messages == 23


def test_usage_counts_each_answer_once(store: Store) -> None:
    formats.load(PROGRAM, store)
    answers = [m for m in store.messages() if m.usage is not None]
    said = set()
    for path in PROGRAM.rglob("*.jsonl"):
        for line in path.read_text().splitlines():
            message = json.loads(line).get("message", {})
            if message.get("role") == "assistant" and message.get("model") != "<synthetic>":
                said.add((message["id"], message["usage"]["output_tokens"]))
    assert sorted(m.usage.output_tokens for m in answers if m.usage) == sorted(out for _, out in said)


def test_a_thread_is_what_the_provider_would_get_again(store: Store) -> None:
    formats.load(PROGRAM, store)
    talk = one(store)
    end = by_text(store)["done after tool 3"]
    history = dialect("anthropic").history(talk.fork(at=end.id).thread())
    assert [entry["role"] for entry in history] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    results = history[4]["content"]
    assert isinstance(results, list)
    assert [block["content"] for block in results] == ["one", "two"]


def test_the_lines_can_be_put_together_again(store: Store) -> None:
    formats.load(PROGRAM, store)
    whole = {}
    for message in store.messages():
        raw, at = message.raw, 0
        assert isinstance(raw, dict)
        for line in (message.extra or {})["native"]:  # type: ignore[attr-defined]  # a list of lines
            content = raw["content"]
            if "blocks" in line:
                content = content[at : at + line["blocks"]]
                at += line["blocks"]
            bare = {name: value for name, value in line.items() if name not in ("blocks", "message")}
            whole[line["uuid"]] = {**bare, "message": {**line["message"], "role": raw["role"], "content": content}}
    said: dict[str, list[object]] = {}
    for path in sorted(PROGRAM.rglob("*.jsonl"), reverse=True):  # the copy in the fork has another session
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["type"] in ("user", "assistant"):
                said.setdefault(line["uuid"], []).append(line)
    assert len(whole) == len(said)
    assert all(line in said[uuid] for uuid, line in whole.items())


# -- trees


def test_a_rewind_is_a_branch_and_a_grown_file_adds_its_tail(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").answer(2, 1, "a").user(3, 2, "left").answer(4, 3, "l")
    session.user(5, 2, "right").answer(6, 5, "r")
    path = session.write(tmp_path / f"{SESSION}.jsonl")
    assert formats.load(path, store).leaves == 2
    assert threads(store) == {("q", "a", "left", "l"), ("q", "a", "right", "r")}
    assert one(store).id == SESSION
    session.user(8, 6, "more").write(path)
    with path.open("a") as file:
        file.write(Session().answer(9, 8, "half").lines[0][:60])
    report = formats.load(path, store)
    assert (report.messages, len(report.waiting), report.unreadable) == (1, 1, ())
    assert one(store).thread()[-1].text == "more"


def test_lines_of_one_answer_are_one_message_also_around_results(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q")
    session.answer(2, 1, call("a"), id="msg_x", out=3).user(3, 2, result("a", "A"))
    session.answer(4, 2, call("b"), id="msg_x", out=172).user(5, 4, result("b", "B")).answer(6, 5, "end")
    formats.load(session.write(tmp_path / "s.jsonl"), store)
    assert threads(store) == {("q", "[a][b]", "A", "B", "end")}
    message = by_text(store)["[a][b]"]
    assert message.usage is not None
    assert message.usage.output_tokens == 172  # not 3, and not the sum


def test_a_call_that_is_answered_again_is_a_branch(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").answer(2, 1, call("a"))
    session.user(3, 2, result("a", "A")).answer(4, 3, "x").user(5, 2, result("a", "B")).answer(6, 5, "y")
    formats.load(session.write(tmp_path / "s.jsonl"), store)
    assert threads(store) == {("q", "[a]", "A", "x"), ("q", "[a]", "B", "y")}


def test_an_answer_that_was_imported_half_is_completed(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").answer(2, 1, "I look.", id="msg_x")
    path = session.write(tmp_path / f"{SESSION}.jsonl")
    formats.load(path, store)
    session.answer(3, 2, call("a"), id="msg_x", out=9).user(4, 3, result("a", "A")).write(path)
    report = formats.load(path, store)
    assert (report.amended, report.messages) == (1, 1)
    assert threads(store) == {("q", "I look.[a]", "A")}


def test_lines_that_are_no_messages_are_kept_and_bridged(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").add(2, 1, "attachment", attachment={"type": "file"})
    session.add(3, 2, "progress", data={}).answer(4, 3, "a").add(5, 4, "system", subtype="turn_duration")
    session.user(6, 5, "next").note(type="never-seen-before", uuid=u(7)).note(type="mode", mode="plan")
    report = formats.load(session.write(tmp_path / "s.jsonl"), store)
    assert threads(store) == {("q", "a", "next")}
    assert report.unknown == {"never-seen-before": 1}
    assert report.bookkeeping == {"attachment": 1, "progress": 1, "system": 1, "mode": 1}
    kept = list(formats.read_records(one(store)))
    assert [type for type, _ in kept] == ["attachment", "progress", "system", "never-seen-before", "mode"]
    assert kept[2][1]["subtype"] == "turn_duration"  # type: ignore[index]  # JSON


def test_a_prompt_that_waited_is_a_message(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").answer(2, 1, call("a")).user(3, 2, result("a", "A"))
    queued = {"type": "queued_command", "prompt": "and hurry", "commandMode": "prompt"}
    session.add(4, 3, "attachment", attachment=queued).answer(5, 4, "done")
    formats.load(session.write(tmp_path / "s.jsonl"), store)
    assert threads(store) == {("q", "[a]", "A", "and hurry", "done")}


def test_a_compaction_is_a_linked_root(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").answer(2, 1, "a")
    session.add(3, None, "system", subtype="compact_boundary", logicalParentUuid=u(2), content="compacted")
    session.user(4, 3, "the sum of it", isCompactSummary=True).answer(5, 4, "on")
    formats.load(session.write(tmp_path / "s.jsonl"), store)
    found = by_text(store)
    assert (found["the sum of it"].parent, found["the sum of it"].link) == (None, found["a"].id)
    assert found["the sum of it"].main
    assert [m.text for m in one(store).thread()] == ["the sum of it", "on"]


# -- forks


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_branch_with_new_ids_is_found_by_its_stamps(store: Store, order: tuple[int, int], tmp_path: Path) -> None:
    first = Session().user(1, None, "q").answer(2, 1, "a").user(3, 2, "left")
    second = Session(OTHER)
    second.user(101, None, "q", forkedFrom={"sessionId": SESSION, "messageUuid": u(1)})
    second.answer(102, 101, "a", id="msg_2", forkedFrom={"sessionId": SESSION, "messageUuid": u(2)})
    second.user(103, 102, "right")
    files = [first.write(tmp_path / f"{SESSION}.jsonl"), second.write(tmp_path / f"{OTHER}.jsonl")]
    for n in order:
        formats.load(files[n], store)
    assert threads(store) == {("q", "a", "left"), ("q", "a", "right")}
    assert store.stats().conversations == 1


def test_a_copy_that_was_appended_twice_without_parents_changes_nothing(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").answer(2, 1, "a").user(3, 2, "next")
    again = Session().user(1, None, "q").answer(2, None, "a").user(3, None, "next")
    session.lines += again.lines
    formats.load(session.write(tmp_path / "s.jsonl"), store)
    assert threads(store) == {("q", "a", "next")}


def test_two_sessions_in_one_file_are_two_conversations(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").answer(2, 1, "a")
    session.lines += Session(OTHER).user(11, None, "other").answer(12, 11, "b").lines
    assert formats.load(session.write(tmp_path / f"{SESSION}.jsonl"), store).new == 2
    assert threads(store) == {("q", "a"), ("other", "b")}


# -- sub-agents


def test_a_sub_agent_within_the_session_is_found_by_its_prompt(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q")
    session.answer(2, 1, call("t1", "Task", prompt="look there", subagent_type="Explore"))
    session.user(3, None, "look there", isSidechain=True).answer(4, 3, "seen", isSidechain=True)
    session.user(5, 2, result("t1", "seen")).answer(6, 5, "done")
    report = formats.load(session.write(tmp_path / "s.jsonl"), store)
    found = by_text(store)
    assert report.subagents == 1
    assert {m.label for m in store.messages() if not m.main} == {"subagent:Explore:t1"}
    assert found["look there"].link == found["[t1]"].id
    assert [shown(m) for m in one(store).thread()] == ["q", "[t1]", "seen", "done"]


def test_sub_agents_in_files_beside_and_below_the_session(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q")
    session.answer(2, 1, call("t1", "Task", prompt="p1"), call("t2", "Agent", prompt="p2"))
    session.user(3, 2, result("t1", "r1"), toolUseResult={"agentId": "aa"}).user(4, 2, result("t2", "r2"))
    path = session.write(tmp_path / f"{SESSION}.jsonl")
    beside = Session(isSidechain=True, agentId="aa").user(21, None, "p1").answer(22, 21, "by aa")
    beside.write(tmp_path / "agent-aa.jsonl")
    below = Session(isSidechain=True, agentId="bb").user(31, None, "p2")
    below.answer(32, 31, call("t3", "Agent", prompt="p3")).user(33, 32, result("t3", "r3")).answer(34, 33, "by bb")
    below.write(tmp_path / SESSION / "subagents" / "agent-bb.jsonl")
    about = {"agentType": "general:purpose", "toolUseId": "t2"}
    (tmp_path / SESSION / "subagents" / "agent-bb.meta.json").write_text(json.dumps(about))
    deep = Session(isSidechain=True, agentId="cc").user(41, None, "p3").answer(42, 41, "by cc")
    deep.write(tmp_path / SESSION / "subagents" / "agent-cc.jsonl")
    (tmp_path / SESSION / "subagents" / "agent-cc.meta.json").write_text('{"agentType": "Plan", "toolUseId": "t3"}')
    report = formats.load(tmp_path, store)
    found = by_text(store)
    assert (report.new, report.subagents) == (1, 3)
    answer = found["[t1][t2]"].id
    assert [found[p].link for p in ("p1", "p2", "p3")] == [answer, answer, found["[t3]"].id]
    assert [found[p].label for p in ("p1", "p2", "p3")] == [
        "subagent:agent:aa", "subagent:general-purpose:bb", "subagent:Plan:cc",
    ]  # fmt: skip
    assert found["by bb"].label == found["p2"].label
    assert [shown(m) for m in one(store).thread()] == ["q", "[t1][t2]", "r1", "r2"]
    assert formats.load(path, store).messages == 0  # below the session they are found from the session alone


def test_a_replay_of_the_session_for_its_summary_is_not_counted_again(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").answer(2, 1, "a").user(3, 2, "more").answer(4, 3, "b")
    session.write(tmp_path / f"{SESSION}.jsonl")
    replay = Session(isSidechain=True, agentId="acompact-1").user(51, None, "q").answer(52, 51, "a", id="msg_2")
    replay.user(53, 52, "more").answer(54, 53, "b", id="msg_4").user(55, 54, "sum it up").answer(56, 55, "summed up")
    replay.write(tmp_path / SESSION / "subagents" / "agent-acompact-1.jsonl")
    report = formats.load(tmp_path, store)
    assert report.messages == 6
    assert report.bookkeeping == {"replay": 4}


# -- titles, marks, odd lines


def test_titles_come_from_the_session_and_the_person_s_own_wins(store: Store, tmp_path: Path) -> None:
    session = Session().note(type="summary", summary="of another session", leafUuid=u(99))
    session.note(type="summary", summary="of this one", leafUuid=u(2)).user(1, None, "q").answer(2, 1, "a")
    path = session.write(tmp_path / f"{SESSION}.jsonl")
    formats.load(path, store)
    assert one(store).title == "of this one"
    session.note(type="ai-title", aiTitle="by the model").write(path)
    formats.load(path, store)
    assert one(store).title == "by the model"
    session.note(type="custom-title", customTitle="by Ada").note(type="ai-title", aiTitle="again").write(path)
    formats.load(path, store)
    assert one(store).title == "by Ada"


def test_what_no_person_wrote_is_marked(store: Store, tmp_path: Path) -> None:
    texts: list[tuple[Any, str | None, dict[str, object]]] = [
        ("words", None, {}),
        ("<command-name>/clear</command-name>", "command", {}),
        ("<local-command-stdout>x</local-command-stdout>", "command", {}),
        ("<system-reminder>be good</system-reminder>", "reminder", {}),
        ("caveat", "context", {"isMeta": True}),
        ("from a hook", "context", {"origin": {"kind": "hook"}}),
        ("from me", None, {"origin": {"kind": "human"}}),
        ([{"type": "text", "text": "[Request interrupted by user]"}], "command", {}),
        ([{"type": "text", "text": "<system-reminder>x</system-reminder>"}, {"type": "text", "text": "me"}], None, {}),
    ]
    session = Session()
    for n, (content, _, fields) in enumerate(texts, 1):
        session.user(n, n - 1 or None, content, **fields)
    formats.load(session.write(tmp_path / "s.jsonl"), store)
    said = one(store).thread()
    assert [(m.extra or {}).get("injected") for m in said] == [why for _, why, _ in texts]
    assert [(block.extra or {}).get("injected") for block in said[-1].blocks] == ["reminder", None]


def test_images_and_thoughts_are_blocks(store: Store, tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    session = Session().user(1, None, [image, {"type": "text", "text": "see"}])
    session.answer(2, 1, {"type": "thinking", "thinking": "hm", "signature": "sig"}, "yes")
    formats.load(session.write(tmp_path / "s.jsonl"), store)
    question, answer = one(store).thread()
    assert (question.blocks[0].modality, question.blocks[0].content) == ("image", b"\x89PNG\r\n\x1a\n")
    assert (answer.blocks[0].type, answer.blocks[0].content) == ("thinking", "hm")


def test_odd_lines_are_reported_and_the_rest_comes(store: Store, tmp_path: Path) -> None:
    session = Session().user(1, None, "q").add(2, 1, "assistant", message={"content": 3}).answer(3, 2, "a")
    session.lines += ["not json", "[1]", "", '{"type": 5}']
    session.user(4, 3, "half \ud83d here").user(5, 4, "x\0y")
    with pytest.raises(PartialImport) as caught:
        formats.load(session.write(tmp_path / "s.jsonl"), store)
    report: Any = caught.value.report
    assert len(report.unreadable) == 3
    assert threads(store) == {("q", "a", "half \ufffd here", "x\0y")}
    assert report.unknown == {"unreadable assistant": 1, "without a type": 1}


def test_other_lines_are_no_session() -> None:
    for head in (b"", b"{}", b'{"messages":[{"role":"user"}]}', b'{"hitherto":"jsonl","version":1}\n', b"\xff\xfe{"):
        assert claude_code.FORMAT.recognises(formats.Source(Path("x"), False, head)) is None


def test_where_the_program_keeps_its_files_and_how_long(tmp_path: Path) -> None:
    program = claude_code.FORMAT
    assert tmp_path / ".claude" / "projects" in program.places({}, tmp_path)
    assert list(program.places({"CLAUDE_CONFIG_DIR": "/a,/b"}, tmp_path)) == [Path("/a/projects"), Path("/b/projects")]
    assert program.retention_days({}, tmp_path) == 30
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text('{"cleanupPeriodDays": 99}')
    assert program.retention_days({}, tmp_path) == 99


def test_a_document_says_what_no_person_wrote(store: Store, tmp_path: Path) -> None:
    formats.load(PROGRAM, store)
    formats.save(store, tmp_path / "all.md")
    text = (tmp_path / "all.md").read_text()
    assert text.count("· not by a person: `summary`") == 1
    assert text.count("· not by a person: `command`") == 2


@pytest.mark.parametrize("key", [None, Key(b"k" * 32)], ids=["plain", "sealed"])
def test_full_runs_come_packed_and_the_rest_grows(tmp_path: Path, key: Key | None) -> None:
    session = Session()
    for n in range(1, 2 * RUN + 4):
        session.user(n, n - 1 or None, f"message {n}")
    with hitherto.open("memory:", key=key) as store:
        formats.load(session.write(tmp_path / f"{SESSION}.jsonl"), store)
        assert [pack.count for pack in store.backend.packs(range(0, store.backend.edge(), RUN))] == [RUN, RUN]
        for n in range(2 * RUN + 4, 3 * RUN + 3):
            session.user(n, n - 1, f"message {n}")
        assert formats.load(session.write(tmp_path / f"{SESSION}.jsonl"), store).messages == RUN - 1
        (talk,) = store.conversations().items
        assert [message.text for message in store.conversation(talk.id).thread()] == [
            f"message {n}" for n in range(1, 3 * RUN + 3)
        ]
        assert store.verify().ok


def test_a_session_comes_through_a_pipe() -> None:
    session = Session().user(1, None, "hello").answer(2, 1, "yes")
    with hitherto.open("memory:") as store:
        assert formats.load(io.BytesIO("\n".join(session.lines).encode()), store).messages == 2
