"""Agents of the Agent Framework with a model that is scripted, and a tool that kills the process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

framework: Any = pytest.importorskip("agent_framework", reason="it lives in .tools/adapters/agent-framework")

import hitherto  # noqa: E402  # after it is known that the test can run
from hitherto import Key  # noqa: E402
from hitherto.adapters.agent_framework import History  # noqa: E402
from tests.adapters.plugins.stores import new_store  # noqa: E402


class Scripted(framework.FunctionInvocationLayer, framework.ChatMiddlewareLayer, framework.BaseChatClient):  # type: ignore[misc]  # not installed where types are checked
    """A model that calls the tool once and then answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []

    def _inner_get_response(
        self, *, messages: Sequence[Any], stream: bool, options: Mapping[str, Any], **_: Any
    ) -> Awaitable[Any]:
        self.asked.append([message.role for message in messages])
        if messages[-1].role == "tool":
            said = framework.Content.from_text("Two files.")
        elif "list" in messages[-1].text:
            said = framework.Content.from_function_call(call_id="c1", name="look", arguments="{}")
        else:
            said = framework.Content.from_text("You are welcome.")
        answer = framework.ChatResponse(messages=[framework.Message(role="assistant", contents=[said])])

        async def respond() -> Any:
            return answer

        return respond()


def agent_on(store: Any, client: Scripted, tool: Any) -> Any:
    return framework.Agent(
        client=client,
        tools=[tool],
        context_providers=[History(store)],
        require_per_service_call_history_persistence=True,
    )


def roles(store: hitherto.Store) -> list[str]:
    (info,) = store.conversations().items
    return [str(message.role) for message in store.conversation(info).thread()]


def look() -> str:
    """Look at the files."""
    return "one, two"


def die() -> str:
    """Look at the files."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


die.__name__ = "look"


def test_an_agent_goes_on_where_another_one_stopped() -> None:
    store, client = new_store(), Scripted()
    asyncio.run(_ask(agent_on(store, client, look), "list the files"))
    assert roles(store) == ["user", "assistant", "tool_result", "assistant"]
    again = Scripted()
    asyncio.run(_ask(agent_on(store, again, look), "thank you"))
    assert again.asked == [["user", "assistant", "tool", "assistant", "user"]]
    assert roles(store)[4:] == ["user", "assistant"]


def test_an_answer_survives_a_death_in_its_tool(tmp_path: Path) -> None:
    """E3"""
    key = tmp_path / "key"
    Key.generate().to_file(key)
    path = os.pathsep.join(sys.path)
    command = [sys.executable, __file__, str(tmp_path / "c.db"), str(key)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == -signal.SIGKILL
    with hitherto.open(tmp_path / "c.db", key=Key.from_file(key)) as store:
        assert roles(store) == ["user", "assistant"]
        assert store.verify().ok


async def _ask(agent: Any, question: str) -> Any:
    return await agent.run(question, session=framework.AgentSession(session_id="s"))


if __name__ == "__main__":
    with hitherto.open(sys.argv[1], key=Key.from_file(sys.argv[2])) as opened:
        asyncio.run(_ask(agent_on(opened, Scripted(), die), "list the files"))
