"""Folders of Strands' sessions, as `FileSessionManager` writes them."""

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Store, formats
from hitherto.errors import PartialImport

AT = "2026-11-19T04:00:00+00:00"


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=2), encoding="utf-8")


def message(folder: Path, number: int, role: str, *parts: dict[str, Any], agent: str = "a") -> None:
    said = {"role": role, "content": list(parts)}
    whole = {"message": said, "message_id": number, "redact_message": None, "created_at": AT, "updated_at": AT}
    write(folder / f"agents/agent_{agent}/messages/message_{number}.json", whole)


def session(root: Path, id: str = "one") -> Path:
    folder = root / f"session_{id}"
    write(folder / "session.json", {"session_id": id, "session_type": "AGENT", "created_at": AT, "updated_at": AT})
    for agent in ("a", "b"):
        state = {"agent_id": agent, "state": {"mood": "calm"}, "conversation_manager_state": {}, "created_at": AT}
        write(folder / f"agents/agent_{agent}/agent.json", state)
    write(folder / "multi_agents/multi_agent_g/multi_agent.json", {"node": "first"})
    message(folder, 0, "user", {"text": "Which files are here?"})
    message(folder, 1, "assistant", {"toolUse": {"toolUseId": "t1", "name": "look", "input": {}}})
    message(folder, 2, "user", {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "two"}]}})
    for number in range(3, 12):
        message(folder, number, "assistant" if number % 2 else "user", {"text": f"words {number}"})
    message(folder, 0, "user", {"text": "Another agent"}, agent="b")
    return folder


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


def texts(store: Store, key: str) -> list[str]:
    talk = store.find(key)
    assert talk is not None
    return [said.text for said in talk.thread()]


def test_an_agent_is_the_conversation_that_the_adapter_goes_on_with(store: Store, tmp_path: Path) -> None:
    """E4"""
    session(tmp_path)
    session(tmp_path, "two/2".replace("/", "-"))
    report = formats.load(tmp_path, store)
    assert (report.format, report.new, report.messages, report.skipped) == ("strands", 6, 26, 0)
    talk = store.find("strands/one/a")
    assert talk is not None
    assert [said.text for said in talk.thread()][:4] == ["Which files are here?", "", "two", "words 3"]
    assert [said.text for said in talk.thread()][-1] == "words 11"
    assert [str(said.role) for said in talk.thread()][:3] == ["user", "assistant", "tool_result"]
    assert talk.title == "Which files are here?"
    assert json.loads(talk.items["strands/agent"])["state"] == {"mood": "calm"}
    assert talk.metadata["session_id"] == "one"
    beside = store.find("session/one", kind="strands")
    assert beside is not None
    assert json.loads(beside.items["strands/multi-agent/g"]) == {"node": "first"}
    assert json.loads(beside.items["strands/session"])["session_id"] == "one"
    assert len(store.conversations().items) == 4


def test_the_same_folder_adds_nothing_and_a_grown_one_its_end(store: Store, tmp_path: Path) -> None:
    folder = session(tmp_path)
    formats.load(folder, store)
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as zipped:
        for path in folder.rglob("*.json"):
            zipped.write(path, path.relative_to(tmp_path))
    for again in (folder, folder / "session.json", tmp_path / "s.zip"):
        report = formats.load(again, store)
        assert (report.format, report.new, report.messages, report.unchanged) == ("strands", 0, 0, 3), again
    message(folder, 12, "user", {"text": "more"})
    assert formats.load(folder, store).messages == 1
    assert texts(store, "strands/one/a")[-1] == "more"


def test_broken_files_are_named_and_the_others_are_there(store: Store, tmp_path: Path) -> None:
    folder = session(tmp_path)
    messages = folder / "agents/agent_a/messages"
    write(messages / "message_3.json", '{"message": {"content"')
    write(messages / "message_5.json", (messages / "message_4.json").read_text())
    message(folder, 6, "user", {"text": "half \ud83d"}, {"mystery": [None, 2**80]})
    message(folder, 7, "user", {"text": "x" * 200_000})
    stray = tmp_path / "session_lost/agents/agent_a/messages"
    stray.mkdir(parents=True)
    shutil.copy(messages / "message_4.json", stray)
    with pytest.raises(PartialImport) as partial:
        formats.load(tmp_path, store)
    report: Any = partial.value.report
    assert sorted(one.name.rpartition("/")[2] for one in report.unreadable) == [
        "message_3.json",
        "message_4.json",
        "message_5.json",
    ]
    found = texts(store, "strands/one/a")
    assert len(found) == 10
    assert "x" * 200_000 in found


def test_a_session_without_an_id_is_named(store: Store, tmp_path: Path) -> None:
    write(tmp_path / "session_x/session.json", '{"session_id": 5, "session_type": "AGENT"}')
    with pytest.raises(PartialImport, match="no id"):
        formats.load(tmp_path, store)
