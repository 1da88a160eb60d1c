"""LangGraph: a graph of a model and a tool, which keeps five checkpoints and the writes of four tasks in a turn."""

import os
import sqlite3
from typing import Any

from . import Turn


class _Graph:
    """An agent whose model is scripted. Each call compiles nothing anew: a program has one graph."""

    saver: Any

    def _compile(self) -> None:
        from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
        from langgraph.graph import END, START, MessagesState, StateGraph

        self._human = HumanMessage

        def model(state: Any) -> dict[str, list[Any]]:
            turn, last = self._turn, state["messages"][-1]
            if last.type == "human":
                call = {"name": "search", "args": {"query": turn.arguments}, "id": turn.call_id}
                return {"messages": [AIMessage("", id=f"call-{turn.number}", tool_calls=[call])]}
            return {"messages": [AIMessage(turn.answer, id=f"answer-{turn.number}")]}

        def tool(_: Any) -> dict[str, list[Any]]:
            turn = self._turn
            return {"messages": [ToolMessage(turn.result, tool_call_id=turn.call_id, id=f"result-{turn.number}")]}

        def route(state: Any) -> str:
            return "tool" if state["messages"][-1].tool_calls else END

        builder = StateGraph(MessagesState)
        builder.add_node("model", model)
        builder.add_node("tool", tool)
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", route)
        builder.add_edge("tool", "model")
        self.graph = builder.compile(checkpointer=self.saver)

    async def keep(self, name: str, turn: Turn) -> None:
        self._turn = turn
        message = self._human(turn.question, id=f"question-{turn.number}")
        self.graph.invoke({"messages": [message]}, _config(name), durability="sync")

    async def read(self, name: str) -> int:
        found = self.saver.get_tuple(_config(name))
        return 0 if found is None else len(found.checkpoint["channel_values"]["messages"]) // 4

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

    async def close(self) -> None:
        self.store.close()


class Sealed(Ours):
    key = bytes(range(32))


SIDES = {"SqliteSaver": SqliteSaver, "hitherto": Ours, "hitherto, sealed": Sealed}
GOALS = {"hitherto": 1.0, "hitherto, sealed": None}
# SqliteSaver writes all messages with each checkpoint: its file would have a dozen gigabytes at 1,000 turns.
MOST_TURNS = dict.fromkeys(SIDES, 300)
