"""llm, from its command line, which logs what was said. It has no command that deletes, and none that encrypts."""

import os
from importlib.metadata import version
from typing import Any

import llm
import sqlite_utils
from llm.cli import cli

from . import Model

NAME = f"llm {version('llm')}"


_hook: Any = llm.hookimpl


class _Scripted(llm.Model):
    model_id = "scripted"
    supports_tools = True
    can_stream = False

    def __init__(self, model: Model, arguments: str | None = None) -> None:
        self._model, self._arguments = model, arguments

    def execute(self, _: Any, response: Any, **__: Any) -> Any:
        if self._arguments is None:
            yield self._model()
        else:
            response.add_tool_call(llm.ToolCall(name="look", arguments={"at": self._arguments}, tool_call_id="call_1"))


def _run(folder: str, model: Any, *arguments: str, tool: Model | None = None) -> None:
    os.environ["LLM_USER_PATH"] = folder

    class Plugin:
        @_hook  # type: ignore[untyped-decorator]  # llm is not in this environment
        def register_models(self, register: Any) -> None:
            register(model)

        @_hook  # type: ignore[untyped-decorator]  # llm is not in this environment
        def register_tools(self, register: Any) -> None:
            if tool is not None:

                def look(at: str) -> str:
                    """Look at something."""
                    return tool() + at

                register(look)

    plugin = Plugin()
    llm.plugins.pm.register(plugin)
    try:
        cli(["prompt", "-m", "scripted", "--no-stream", *arguments], standalone_mode=False)
    finally:
        llm.plugins.pm.unregister(plugin)


def ask(folder: str, question: str, model: Model, turns: int = 1) -> None:
    for number in range(turns):
        go_on = ["--continue"] if os.path.exists(os.path.join(folder, "logs.db")) else []
        _run(folder, _Scripted(model), *go_on, f"{question} {number}")


def ask_with_tool(folder: str, arguments: str, tool: Model) -> None:
    _run(folder, _Scripted(tool, arguments), "-T", "look", "Look.", tool=tool)


def read(folder: str) -> str:
    if not os.path.exists(os.path.join(folder, "logs.db")):
        return ""
    database = sqlite_utils.Database(os.path.join(folder, "logs.db"))
    return repr([list(table.rows) for table in database.tables])
