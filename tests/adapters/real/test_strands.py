"""Agents of Strands with a model that is scripted, a tool that kills the process, and folders that Strands wrote."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("strands", reason="strands-agents lives in .tools/adapters/strands")

from strands import Agent, tool  # after it is known that the test can run
from strands.models import Model
from strands.session.file_session_manager import FileSessionManager
from strands.session.repository_session_manager import RepositorySessionManager

import hitherto
from hitherto import Key, formats
from hitherto.adapters.strands import Repository
from tests.adapters.plugins.stores import new_store


class Scripted(Model):  # type: ignore[misc]  # not installed where types are checked
    """A model that calls the tool once and then answers."""

    def get_config(self) -> dict[str, Any]:
        return {}

    def update_config(self, **config: Any) -> None:
        pass

    def structured_output(self, *given: Any, **more: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: list[Any], *given: Any, **more: Any) -> AsyncIterator[dict[str, Any]]:
        last = messages[-1]["content"][-1]
        answer = "Two files." if "toolResult" in last else "You are welcome."
        yield {"messageStart": {"role": "assistant"}}
        if "list" in last.get("text", ""):
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t1", "name": "look"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"path": "."})}}}}
            stop = "tool_use"
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": answer}}}
            stop = "end_turn"
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": stop}}


@tool  # type: ignore[untyped-decorator]  # as above
def look(path: str) -> str:
    """Look at the files."""
    return f"one, two in {path}"


@tool(name="look")  # type: ignore[untyped-decorator]  # as above
def die(path: str) -> str:
    """Look at the files."""
    os.kill(os.getpid(), signal.SIGKILL)
    return path


def ask(manager: Any, question: str, used: Any = look) -> Any:
    agent = Agent(model=Scripted(), agent_id="a", tools=[used], session_manager=manager, callback_handler=None)
    agent(question)
    return agent


def on(store: Any) -> Any:
    return RepositorySessionManager(session_id="s", session_repository=Repository(store))


def roles(store: hitherto.Store) -> list[str]:
    (info,) = store.conversations().items
    return [str(message.role) for message in store.conversation(info).thread()]


def test_an_agent_goes_on_where_another_one_stopped() -> None:
    store = new_store()
    ask(on(store), "list the files")
    agent = ask(on(store), "thank you")
    assert roles(store) == ["user", "assistant", "tool_result", "assistant", "user", "assistant"]
    assert [message["role"] for message in agent.messages] == ["user", "assistant"] * 3


def test_an_answer_survives_a_death_in_its_tool(tmp_path: Path) -> None:
    """E3: Strands keeps the answer before its tools run."""
    key = tmp_path / "key"
    Key.generate().to_file(key)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, str(tmp_path / "c.db"), str(key)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    with hitherto.open(tmp_path / "c.db", key=Key.from_file(key)) as store:
        assert roles(store) == ["user", "assistant"]
        ask(on(store), "thank you")
        assert roles(store)[-2:] == ["user", "assistant"]
        assert store.verify().ok


def test_what_strands_wrote_is_brought_over_whole(tmp_path: Path) -> None:
    """E4: the same session, agent and messages; a second import adds nothing."""
    ask(FileSessionManager("s", storage_dir=str(tmp_path)), "list the files")
    ask(FileSessionManager("s", storage_dir=str(tmp_path)), "thank you")
    store = new_store()
    report = formats.load(tmp_path, store)
    assert (report.format, report.new, report.messages) == ("strands", 2, 6)
    assert formats.load(tmp_path, store).unchanged == 2
    theirs, ours = FileSessionManager("s", storage_dir=str(tmp_path)), Repository(store)
    assert ours.read_session("s").to_dict() == theirs.read_session("s").to_dict()
    assert ours.read_agent("s", "a").to_dict() == theirs.read_agent("s", "a").to_dict()
    here, there = ours.list_messages("s", "a"), theirs.list_messages("s", "a")
    assert [message.to_dict() for message in here] == [message.to_dict() for message in there]
    agent = ask(on(store), "list the files")
    assert len(agent.messages) == len(roles(store)) == 10


if __name__ == "__main__":
    with hitherto.open(sys.argv[1], key=Key.from_file(sys.argv[2])) as opened:
        ask(on(opened), "list the files", die)
