"""LangGraph: a graph of a model that answers, which keeps three checkpoints and the writes of two tasks in a turn.

The texts are short: 1,000 turns are 0.8 MB of chat. SqliteSaver writes all of it with each checkpoint.
"""

import os
import sqlite3
from typing import Any

from . import Turn


class _Graph:
    """A chat whose model is scripted. Each call compiles nothing anew: a program has one graph."""

    saver: Any

    def _compile(self) -> None:
        from langchain_core.messages import AIMessage, HumanMessage
        from langgraph.graph import END, START, MessagesState, StateGraph

        self._human = HumanMessage

        def model(_: Any) -> dict[str, list[Any]]:
            return {"messages": [AIMessage(self._turn.answer, id=f"answer-{self._turn.number}")]}

        builder = StateGraph(MessagesState)
        builder.add_node("model", model)
        builder.add_edge(START, "model")
        builder.add_edge("model", END)
        self.graph = builder.compile(checkpointer=self.saver)

    async def keep(self, name: str, turn: Turn) -> None:
        self._turn = turn
        message = self._human(turn.question, id=f"question-{turn.number}")
        self.graph.invoke({"messages": [message]}, _config(name), durability="sync")

    async def read(self, name: str) -> int:
        found = self.saver.get_tuple(_config(name))
        return 0 if found is None else len(found.checkpoint["channel_values"]["messages"]) // 2

    async def close(self) -> None:
        pass


def _config(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


class SqliteSaver(_Graph):
    """The framework's own."""

    def __init__(self, folder: str) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver

        self._connection = sqlite3.connect(os.path.join(folder, "graph.db"), check_same_thread=False)
        self.saver = SqliteSaver(self._connection)
        self._compile()

    async def close(self) -> None:
        self._connection.close()


class Ours(_Graph):
    key: bytes | None = None

    def __init__(self, folder: str) -> None:
        import hitherto
        from hitherto.adapters.langgraph import Saver

        self.store = hitherto.open(os.path.join(folder, "chats.db"), key=self.key)
        self.saver = Saver(self.store)
        self._compile()

    def maintain(self) -> None:
        self.store.maintain()

    async def close(self) -> None:
        self.store.close()


class Sealed(Ours):
    key = bytes(range(32))


SIDES = {"SqliteSaver": SqliteSaver, "hitherto": Ours, "hitherto, sealed": Sealed}
GOALS = {"hitherto": 1.0, "hitherto, sealed": None}
MOST_TURNS: dict[str, int] = {}
CHAT = (350, 460)
MOST_MEGABYTES = {"hitherto": 10, "hitherto, sealed": 10}
MOST_READ_MS = {"hitherto": 50, "hitherto, sealed": 50}
