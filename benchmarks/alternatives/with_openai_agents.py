"""openai-agents, with its own sessions in SQLite."""

import asyncio
import os
from importlib.metadata import version
from typing import Any

import agents
from agents.extensions.memory import EncryptedSession
from agents.models.interface import Model as FrameworkModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from . import Model

NAME = f"openai-agents {version('openai-agents')}, `SQLiteSession`"
agents.set_tracing_disabled(True)


class _Scripted(FrameworkModel):
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def get_response(self, *_: Any, **__: Any) -> Any:
        return agents.ModelResponse(output=[self._answer()], usage=agents.Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def _text(text: str) -> Any:
    content = [ResponseOutputText(text=text, type="output_text", annotations=[])]
    return ResponseOutputMessage(id="msg_1", content=content, role="assistant", status="completed", type="message")


def _session(folder: str) -> Any:
    return agents.SQLiteSession("compared", os.path.join(folder, "agents.db"))


def ask(folder: str, question: str, model: Model, turns: int = 1) -> None:
    agent, session = agents.Agent(name="a", model=_Scripted(lambda: _text(model()))), _session(folder)
    for number in range(turns):
        agents.Runner.run_sync(agent, f"{question} {number}", session=session)


def ask_with_tool(folder: str, arguments: str, tool: Model) -> None:
    async def run(_: Any, __: str) -> str:
        return tool()

    schema = {"type": "object", "properties": {}, "additionalProperties": True}
    look = agents.FunctionTool("look", "Looks.", schema, run, strict_json_schema=False)
    call = ResponseFunctionToolCall(arguments=arguments, call_id="call_1", name="look", type="function_call")
    agent = agents.Agent(name="a", model=_Scripted(lambda: call), tools=[look])
    agents.Runner.run_sync(agent, "Look.", session=_session(folder))


def _items(session: Any) -> str:
    return repr(asyncio.run(session.get_items()))


def read(folder: str) -> str:
    return _items(_session(folder))


def erase(folder: str) -> None:
    session = _session(folder)
    asyncio.run(session.clear_session())
    session.close()


def ask_sealed(folder: str, question: str) -> None:
    agent = agents.Agent(name="a", model=_Scripted(lambda: _text("answer")))
    agents.Runner.run_sync(agent, question, session=EncryptedSession("compared", _session(folder), "key"))


def read_with_another_key(folder: str) -> str:
    return _items(EncryptedSession("compared", _session(folder), "another key"))
