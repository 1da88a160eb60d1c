"""Sessions as Claude Code writes them, with messages of the corpus: what `rescue` reads.

A turn of the corpus is two lines. An answer with a call is a line with the call, and the tool's result is a line of the
user, as in the program's files. Between them stand lines that are no messages, as many as the program writes.
"""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ._corpus import messages
from ._messages import Plain

_BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
_NOTE_EVERY = 10  # messages


def write_session(folder: Path, number: int, count: int) -> None:
    """Write the file of a session of so many messages."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{_name(number)}.jsonl", "wb") as file:
        file.writelines(session_lines(number, count))


def session_lines(number: int, count: int) -> Iterator[bytes]:
    """Yield the lines of a session of so many messages."""
    session, parent = _name(number), None
    for n in range(count):
        said = _corpus_message(n, number)
        at = _BEGAN + timedelta(seconds=n)
        about = {
            "isSidechain": False, "userType": "external", "entrypoint": "cli", "version": "2.1.197",
            "gitBranch": "main", "cwd": f"/home/ada/project-{number % 20}", "sessionId": session,
            "timestamp": f"{at:%Y-%m-%dT%H:%M:%S}.{n % 1000:03d}Z",
        }  # fmt: skip
        own = str(uuid.UUID(int=number << 40 | n + 1, version=4))
        yield _line({"parentUuid": parent, **about, "uuid": own, **_content(said, n)})
        parent = own
        if n % _NOTE_EVERY == 0:
            note = str(uuid.UUID(int=1 << 100 | number << 40 | n + 1, version=4))
            yield _line(
                {"parentUuid": parent, **about, "uuid": note, "type": "attachment", "attachment": {"type": "todo"}}
            )


def _name(number: int) -> str:
    return str(uuid.UUID(int=number + 1, version=4))


def _line(record: dict[str, object]) -> bytes:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


_made: list[Plain] = []


def _corpus_message(n: int, start: int) -> Plain:
    if not _made:
        _made.extend(messages(2_000))
    return _made[(n + 2 * start) % len(_made)]


def _content(said: Plain, n: int) -> dict[str, object]:
    """Return the type of a line, and its message as Anthropic's API has it."""
    if said["role"] == "assistant":
        blocks: list[dict[str, object]] = [{"type": "text", "text": said["content"]}] if said["content"] else []
        for call in said.get("tool_calls", ()):
            given = json.loads(call["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["name"], "input": given})
        usage = {
            "input_tokens": 3, "cache_creation_input_tokens": 50, "cache_read_input_tokens": 20_000 + n,
            "output_tokens": 1 + len(str(said["content"])) // 4, "service_tier": "standard",
        }  # fmt: skip
        message = {
            "id": f"msg_{n:012x}", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
            "content": blocks, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        return {"type": "assistant", "requestId": f"req_{n:012x}", "message": message}
    if said["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": said["tool_call_id"], "content": said["content"]}
        return {"type": "user", "message": {"role": "user", "content": [result]}, "toolUseResult": {"stdout": ""}}
    return {"type": "user", "message": {"role": "user", "content": said["content"]}}
