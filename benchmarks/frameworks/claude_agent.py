"""Claude Agent SDK: a session store as the SDK uses it with eager flushing: each entry of a transcript is appended.

The SDK has no store on a disk of its own. Beside hitherto stands what its program does: a file of JSON lines, here
with an fsync for each append, so that both are durable when a call returns.
"""

import asyncio
import json
import os
from typing import Any

from . import Turn


class _Store:
    store: Any

    async def keep(self, name: str, turn: Turn) -> None:
        key = {"project_key": "bench", "session_id": name}
        for entry in _entries(turn):
            await self.store.append(key, [entry])

    async def read(self, name: str) -> int:
        return len(await self.store.load({"project_key": "bench", "session_id": name}) or ()) // 4

    async def close(self) -> None:
        pass


class JSONLines(_Store):
    def __init__(self, folder: str) -> None:
        self.store, self._folder = self, folder

    async def append(self, key: dict[str, str], entries: list[Any]) -> None:
        await asyncio.to_thread(self._append, key, entries)

    def _append(self, key: dict[str, str], entries: list[Any]) -> None:
        with open(os.path.join(self._folder, f"{key['session_id']}.jsonl"), "a", encoding="utf-8") as file:
            file.writelines(json.dumps(entry) + "\n" for entry in entries)
            file.flush()
            os.fsync(file.fileno())

    async def load(self, key: dict[str, str]) -> list[Any] | None:
        return await asyncio.to_thread(self._load, key)

    def _load(self, key: dict[str, str]) -> list[Any] | None:
        path = os.path.join(self._folder, f"{key['session_id']}.jsonl")
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]


class Ours(_Store):
    key: bytes | None = None

    def __init__(self, folder: str) -> None:
        import claude_agent_sdk  # noqa: F401  # loaded before the clock starts

        import hitherto
        from hitherto.adapters.claude_agent import SessionStore

        self.store = SessionStore(hitherto.open(os.path.join(folder, "chats.db"), key=self.key))

    async def close(self) -> None:
        self.store.store.close()


class Sealed(Ours):
    key = bytes(range(32))


def _entries(turn: Turn) -> list[dict[str, object]]:
    """What the program writes of a turn."""
    call = {"type": "tool_use", "id": turn.call_id, "name": "search", "input": {"query": turn.arguments}}
    back = {"type": "tool_result", "tool_use_id": turn.call_id, "content": turn.result}
    said: list[tuple[str, Any]] = [
        ("user", turn.question),
        ("assistant", [call]),
        ("user", [back]),
        ("assistant", [{"type": "text", "text": turn.answer}]),
    ]
    entries = []
    for number, (role, content) in enumerate(said):
        message: dict[str, object] = {"role": role, "content": content}
        if role == "assistant":
            usage = {"input_tokens": 1000, "output_tokens": 100}
            message |= {"id": f"msg_{turn.number}_{number}", "type": "message", "model": "claude", "usage": usage}
        before = f"{turn.number}-{number - 1}" if number else f"{turn.number - 1}-3" if turn.number else None
        about = {"sessionId": "s", "cwd": "/work", "version": "2.1.0", "gitBranch": "main", "isSidechain": False}
        at = {"uuid": f"{turn.number}-{number}", "parentUuid": before, "timestamp": "2026-11-19T04:00:00.000Z"}
        entries.append({"type": role, "message": message, **at, **about})
    return entries


SIDES = {"JSON lines": JSONLines, "hitherto": Ours, "hitherto, sealed": Sealed}
GOALS: dict[str, float] = {}
MOST_TURNS: dict[str, int] = {}
