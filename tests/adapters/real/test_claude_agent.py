"""Sessions of the real `claude` program, which talks to a provider on loopback and has an empty home."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sdk = pytest.importorskip("claude_agent_sdk", reason="claude-agent-sdk lives in .tools/adapters/claude-agent")
pytest.importorskip("trio", reason="this is not the environment of the Claude Agent SDK")

import hitherto  # noqa: E402  # after it is known that the test can run
from hitherto import Key  # noqa: E402
from hitherto.adapters.claude_agent import SessionStore  # noqa: E402
from tests.adapters.plugins.stores import new_store  # noqa: E402
from tests.support.provider import Asked, Json, Provider, Reply, provider  # noqa: E402

SLOW = "python3 -c 'import time; time.sleep(60)'"


def answer_with(command: str) -> Any:
    """Claude, as it is scripted: two tools at once when it is asked to list, words otherwise."""
    calls = iter(range(1000))

    def tool(line: str) -> Json:
        return {"type": "tool_use", "id": f"toolu_{next(calls)}", "name": "Bash", "input": {"command": line}}

    def answer(asked: Asked) -> Reply | Json:
        body = asked.body
        if "messages" not in body or "count_tokens" in asked.path:
            return {"input_tokens": 5}
        last = json.dumps(body["messages"][-1]["content"])
        blocks: list[Json] = [{"type": "text", "text": "You are welcome."}]
        if "tool_result" in last:
            blocks = [{"type": "text", "text": "Two files are here."}]
        elif "list" in last and body.get("tools"):
            blocks = [{"type": "text", "text": "I look."}, tool(command), tool("echo three")]
        stop = "tool_use" if len(blocks) > 1 else "end_turn"
        if not body.get("stream"):
            return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": blocks} | {
                "stop_reason": stop,
                "usage": {"input_tokens": 11, "output_tokens": 9},
            }
        return Reply(events=list(_events(blocks, stop, f"msg_{next(calls)}")))

    return answer


def _events(blocks: list[Json], stop: str, id: str) -> Iterator[Json]:
    message: Json = {"id": id, "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    yield {"type": "message_start", "message": {**message, "usage": {"input_tokens": 11, "output_tokens": 1}}}
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            start: Json = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}}
    yield {"type": "message_stop"}


async def ask(kept: SessionStore, server_url: str, home: Path, prompt: str, resume: str | None = None) -> str:
    """Ask Claude once, in a home folder of its own. Returns the id of the session."""
    (home / "work").mkdir(parents=True, exist_ok=True)
    environment = {
        "ANTHROPIC_BASE_URL": server_url,
        "ANTHROPIC_API_KEY": "no-key-at-all",
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / "config"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1",
    }
    options = sdk.ClaudeAgentOptions(
        session_store=kept,
        session_store_flush="eager",
        cwd=str(home.parent / "work"),
        env=environment,
        permission_mode="bypassPermissions",
        setting_sources=[],
        resume=resume,
    )
    session = ""
    async for message in sdk.query(prompt=prompt, options=options):
        session = getattr(message, "session_id", None) or session
    return session


def said(store: hitherto.Store) -> list[tuple[str, str]]:
    (info,) = store.conversations().items
    return [(str(message.role), message.text) for message in store.conversation(info).thread()]


def bodies(server: Provider) -> list[Json]:
    return [body["messages"] for body in server.bodies if "messages" in body and body.get("tools")]


def test_a_session_goes_on_on_another_machine(tmp_path: Path) -> None:
    """E1: the second home is empty, and Claude knows all that was said."""
    (tmp_path / "work").mkdir()
    store = new_store()
    with provider(answer_with("echo one; echo two")) as server:
        session = asyncio.run(ask(SessionStore(store), server.url, tmp_path / "here", "please list the files"))
        first = said(store)
        asked, answered = ["user", "assistant", "assistant", "assistant"], ["tool_result", "tool_result", "assistant"]
        assert [role for role, _ in first] == [*asked, *answered]
        assert first[-1][1] == "Two files are here."
        asyncio.run(ask(SessionStore(store), server.url, tmp_path / "there", "thank you", session))
        assert said(store)[: len(first)] == first
        assert said(store)[-2:] == [("user", "thank you"), ("assistant", "You are welcome.")]
        assert "Two files are here." in json.dumps(bodies(server)[-1])
    (info,) = store.conversations().items
    assert info.title == "please list the files"
    assert len(store.conversation(info).branches()) == 1
    assert store.verify().ok


def test_a_program_that_is_killed_inside_a_tool_has_kept_the_answer(tmp_path: Path) -> None:
    """E3: the answer that called the tool is paid, and it is there."""
    (tmp_path / "work").mkdir()
    location, key = tmp_path / "chats.db", tmp_path / "key"
    Key.generate().to_file(key)
    with provider(answer_with(SLOW)) as server:
        command = [sys.executable, __file__, str(location), str(key), server.url, str(tmp_path / "here")]
        process = subprocess.Popen(
            command, start_new_session=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
        )
        try:
            with hitherto.open(location, key=Key.from_file(key)) as store:
                deadline = time.monotonic() + 60
                while not (store.conversations().items and len(said(store)) > 3):
                    assert time.monotonic() < deadline, "the tool was never called"
                    assert process.poll() is None, "the session ended by itself"
                    time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with hitherto.open(location, key=Key.from_file(key)) as store:
            assert [role for role, _ in said(store)[:4]] == ["user", "assistant", "assistant", "assistant"]
            session = store.conversations().items[0].metadata["session_id"]
            asyncio.run(ask(SessionStore(store), server.url, tmp_path / "there", "thank you", session))
            assert said(store)[-1] == ("assistant", "You are welcome.")
            assert store.verify().ok


if __name__ == "__main__":
    place, key_file, url, folder = sys.argv[1:]
    with hitherto.open(place, key=Key.from_file(key_file)) as opened:
        asyncio.run(ask(SessionStore(opened), url, Path(folder), "please list the files"))
