"""LangGraph, with its checkpointer for SQLite, as it is set up by default."""

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from . import Model

NAME = f"LangGraph {version('langgraph')}, `SqliteSaver`"
_THREAD: Any = {"configurable": {"thread_id": "compared"}}


def _path(folder: str) -> str:
    return os.path.join(folder, "graph.db")


def _graph(saver: Any, answer: Callable[[], Any], tool: Model | None = None) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", lambda _: {"messages": [answer()]})
    builder.add_edge(START, "model")
    if tool is None:
        builder.add_edge("model", END)
    else:
        builder.add_node("tool", lambda _: {"messages": [tool()]})
        builder.add_edge("model", "tool")
        builder.add_edge("tool", END)
    return builder.compile(checkpointer=saver)


def ask(folder: str, question: str, model: Model, turns: int = 1) -> None:
    with SqliteSaver.from_conn_string(_path(folder)) as saver:
        graph = _graph(saver, lambda: AIMessage(model()))
        for number in range(turns):
            graph.invoke({"messages": [HumanMessage(f"{question} {number}")]}, _THREAD)


def ask_with_tool(folder: str, arguments: str, tool: Model) -> None:
    call = {"name": "look", "args": {"at": arguments}, "id": "call_1"}
    with SqliteSaver.from_conn_string(_path(folder)) as saver:
        graph = _graph(saver, lambda: AIMessage("", tool_calls=[call]), tool)
        graph.invoke({"messages": [HumanMessage("Look.")]}, _THREAD)


def _states(saver: Any) -> str:
    return repr([(one.checkpoint["channel_values"], one.pending_writes) for one in saver.list(_THREAD)])


def read(folder: str) -> str:
    with SqliteSaver.from_conn_string(_path(folder)) as saver:
        return _states(saver)


def erase(folder: str) -> None:
    with SqliteSaver.from_conn_string(_path(folder)) as saver:
        saver.delete_thread("compared")


def _sealed(saver: Any, key: bytes) -> Any:
    saver.serde = EncryptedSerializer.from_pycryptodome_aes(key=key)
    return saver


def ask_sealed(folder: str, question: str) -> None:
    with SqliteSaver.from_conn_string(_path(folder)) as saver:
        graph = _graph(_sealed(saver, b"k" * 32), lambda: AIMessage("answer"))
        graph.invoke({"messages": [HumanMessage(question)]}, _THREAD)


def read_with_another_key(folder: str) -> str:
    with SqliteSaver.from_conn_string(_path(folder)) as saver:
        return _states(_sealed(saver, b"x" * 32))
