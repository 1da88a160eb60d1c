"""Agents of ADK with a model that is scripted, a tool that kills the process, and files that ADK wrote."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="google-adk lives in .tools/adapters/adk")

from google.adk.agents import LlmAgent  # after it is known that the test can run
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

import hitherto
from hitherto import Key, formats
from hitherto.adapters.adk import SessionService
from tests.adapters.plugins.stores import new_store

WHO = {"app_name": "bench", "user_id": "ada"}


class Scripted(BaseLlm):  # type: ignore[misc]  # not installed where types are checked
    """A model that calls the tool once and then answers."""

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[Any]:
        last = llm_request.contents[-1].parts[-1]
        if last.function_response:
            part = types.Part(text="Two files.")
        elif last.text and "list" in last.text:
            part = types.Part(function_call=types.FunctionCall(id="c1", name="look", args={"some_path": "."}))
        else:
            part = types.Part(text="You are welcome.")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def look(some_path: str) -> dict[str, str]:
    """Look at the files."""
    return {"files_here": f"one, two in {some_path}"}


def die(some_path: str) -> dict[str, str]:
    """Look at the files."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


die.__name__ = "look"


async def ask(service: Any, question: str, tool: Any = look) -> None:
    agent = LlmAgent(name="agent", model=Scripted(model="scripted"), tools=[tool], output_key="answer")
    runner = Runner(app_name="bench", agent=agent, session_service=service)
    if await service.get_session(**WHO, session_id="s") is None:
        await service.create_session(**WHO, session_id="s", state={"app:theme": "dark", "user:name": "Ada"})
    asked = types.Content(role="user", parts=[types.Part(text=question)])
    async for _ in runner.run_async(user_id="ada", session_id="s", new_message=asked):
        pass


def roles(store: hitherto.Store) -> list[str]:
    (info,) = store.conversations().items
    return [str(message.role) for message in store.conversation(info).thread()]


def test_an_agent_goes_on_where_another_one_stopped() -> None:
    store = new_store()
    asyncio.run(ask(SessionService(store), "list the files"))
    asyncio.run(ask(SessionService(store), "thank you"))
    assert roles(store) == ["user", "assistant", "tool_result", "assistant", "user", "assistant"]
    session = asyncio.run(SessionService(store).get_session(**WHO, session_id="s"))
    assert session.state == {"app:theme": "dark", "user:name": "Ada", "answer": "You are welcome."}


def test_an_answer_survives_a_death_in_its_tool(tmp_path: Path) -> None:
    """E3"""
    key = tmp_path / "key"
    Key.generate().to_file(key)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, str(tmp_path / "c.db"), str(key)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    with hitherto.open(tmp_path / "c.db", key=Key.from_file(key)) as store:
        assert roles(store) == ["user", "assistant"]
        assert store.verify().ok


@pytest.mark.parametrize("kind", ["sqlite", "database"])
def test_what_adk_wrote_is_brought_over_whole(tmp_path: Path, kind: str) -> None:
    """E4: the same sessions, events and states; a second import adds nothing."""
    path = tmp_path / "adk.db"

    async def compare() -> None:
        url = f"sqlite+aiosqlite:///{path}"
        theirs: Any = SqliteSessionService(str(path)) if kind == "sqlite" else DatabaseSessionService(url)
        await ask(theirs, "list the files")
        await ask(theirs, "thank you")
        store = new_store()
        report = formats.load(path, store)
        assert (report.format, report.new, report.messages) == ("adk", 1, 6)
        assert formats.load(path, store).unchanged == 1
        there = await theirs.get_session(**WHO, session_id="s")
        here = await SessionService(store).get_session(**WHO, session_id="s")
        assert here.events == there.events
        assert here.state == there.state
        await ask(SessionService(store), "list the files")
        assert len(roles(store)) == 10
        if kind == "database":
            await theirs.close()

    asyncio.run(compare())


if __name__ == "__main__":
    with hitherto.open(sys.argv[1], key=Key.from_file(sys.argv[2])) as opened:
        asyncio.run(ask(SessionService(opened), "list the files", die))
