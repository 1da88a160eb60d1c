"""What the provider on loopback answers, in the words of four APIs, and how a request reads.

The last message decides: `use a tool` calls one, `send an agent` starts a sub-agent, a result of a tool is
acknowledged, and any other text is repeated. So each answer can be told from each other, and none depends on how often
a program asks.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

from hitherto import Saved, Store

from ..support.provider import Asked, Json, Reply

SHELL = "echo forty-two"
ERRAND = "Look around the room."  # what a sub-agent is asked
ACKNOWLEDGED = "The tool has answered."


class Entry(NamedTuple):
    """A piece of a conversation, whichever API says it."""

    role: str  # user, assistant or tool
    text: str  # of a call: its name and arguments


def call_entry(name: str, arguments: object) -> Entry:
    value = json.loads(arguments) if isinstance(arguments, str) else arguments
    return Entry("assistant", f"{name} {json.dumps(value, sort_keys=True)}")


def answer(asked: Asked) -> Reply | Json:
    """Answer a request to any of the four APIs."""
    if "generatecontent" in asked.path.lower():
        return _gemini(asked)
    if "count_tokens" in asked.path or "countTokens" in asked.path:
        return {"input_tokens": 5, "totalTokens": 5}
    if asked.path.endswith("/responses"):
        return _responses(asked.body)
    if asked.path.endswith("/chat/completions"):
        return _chat(asked.body)
    if "/messages" in asked.path:
        return _anthropic(asked.body)
    return {"data": [], "models": []}


def _next(entries: list[Entry]) -> str | None:
    """Return what is to be said, or None for a call of a tool."""
    last = entries[-1] if entries else Entry("user", "nothing")
    if last.role == "tool":
        return ACKNOWLEDGED
    return None if re.search("use a tool|send an agent", last.text) else f"I heard: {last.text[-60:]}"


# -- Anthropic's messages


def read_anthropic(body: Json) -> list[Entry]:
    found: list[Entry] = []
    for message in body["messages"]:
        content = message["content"]
        if message["role"] == "system":  # Claude Code describes its surroundings there
            continue
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            if block["type"] == "text" and not _is_context(block["text"]):
                found.append(Entry(message["role"], block["text"]))
            elif block["type"] == "tool_use":
                found.append(call_entry(block["name"], block["input"]))
            elif block["type"] == "tool_result":
                found.append(Entry("tool", _text(block["content"])))
    return found


def _anthropic(body: Json) -> Reply | Json:
    entries = read_anthropic(body)
    text = _next(entries) if body.get("tools") else "a title"
    block: Json = {"type": "text", "text": text}
    if text is None:
        name, line = "Bash", {"command": SHELL, "description": "say it"}
        if "send an agent" in entries[-1].text:
            name, line = "Agent", {"description": "look", "prompt": ERRAND, "subagent_type": "general-purpose"}
        block = {"type": "tool_use", "id": f"toolu_{len(entries)}", "name": name, "input": line}
    stop = "end_turn" if text else "tool_use"
    id = f"msg_{uuid4().hex}"
    message: Json = {"id": id, "type": "message", "role": "assistant", "model": body["model"], "stop_reason": None}
    if not body.get("stream"):
        usage = {"input_tokens": 11, "output_tokens": 9}
        return {**message, "content": [block], "stop_reason": stop, "usage": usage}
    begun: Json
    begun, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": text}
    if text is None:
        begun, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    begin = {**message, "content": [], "usage": {"input_tokens": 11, "output_tokens": 1}}
    return Reply(
        events=[
            {"type": "message_start", "message": begin},
            {"type": "content_block_start", "index": 0, "content_block": begun},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        ]
    )


# -- OpenAI's responses


def read_responses(body: Json) -> list[Entry]:
    found: list[Entry] = []
    for item in body["input"]:
        if item.get("type", "message") == "message" and item["role"] in ("user", "assistant"):
            text = _text(item["content"])
            if not _is_context(text):
                found.append(Entry(item["role"], text))
        elif item.get("type") == "function_call":
            found.append(call_entry(item["name"], item["arguments"]))
        elif item.get("type") == "function_call_output":
            found.append(Entry("tool", _text(item["output"])))
    return found


def _responses(body: Json) -> Reply:
    entries = read_responses(body)
    text, n = _next(entries), len(entries)
    item: Json = {"type": "message", "id": f"msg_{n}", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": text, "annotations": []}]
    if text is None:
        name, arguments = {"name": "exec_command"}, {"cmd": SHELL}
        if "send an agent" in entries[-1].text:
            name, arguments = {"name": "spawn_agent", "namespace": "multi_agent_v1"}, {"message": ERRAND}
        item = {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", **name}
        item["arguments"] = json.dumps(arguments)
    thought = {"type": "reasoning", "id": f"rs_{n}", "summary": [{"type": "summary_text", "text": "So."}]}
    items = [{**thought, "encrypted_content": f"c2VhbGVk{n}"}, item]
    usage = {"input_tokens": 11, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 9}
    usage |= {"output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 20}
    response = {"id": f"resp_{n}", "object": "response", "status": "completed", "output": items, "usage": usage}
    done = [
        {"type": "response.output_item.done", "output_index": index, "item": one} for index, one in enumerate(items)
    ]
    created = {"type": "response.created", "response": {"id": f"resp_{n}"}}
    return Reply(events=[created, *done, {"type": "response.completed", "response": response}])


# -- OpenAI's chat completions


def read_chat(body: Json) -> list[Entry]:
    found: list[Entry] = []
    for message in body["messages"]:
        if message["role"] != "system" and _text(message.get("content")):
            found.append(Entry(message["role"], _text(message["content"])))
        called = [call["function"] for call in message.get("tool_calls") or ()]
        found += [call_entry(one["name"], one["arguments"]) for one in called]
    return found


def _chat(body: Json) -> Json:
    entries = read_chat(body)
    text = _next(entries)
    message: Json = {"role": "assistant", "content": text}
    if text is None:
        called = {"name": body["tools"][0]["function"]["name"], "arguments": "{}"}
        message["tool_calls"] = [{"id": f"call_{len(entries)}", "type": "function", "function": called}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if text else "tool_calls"}
    usage = {"prompt_tokens": 11, "completion_tokens": 9, "total_tokens": 20}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


# -- Gemini's contents


def read_gemini(body: Json) -> list[Entry]:
    """Return what is said. Gemini CLI 0.61 sends each result twice when it has resumed a session: one counts."""
    found: list[Entry] = []
    answered: set[str] = set()
    for content in body["contents"]:
        role = "assistant" if content["role"] == "model" else "user"
        for part in content["parts"]:
            if "functionCall" in part:
                found.append(call_entry(part["functionCall"]["name"], part["functionCall"]["args"]))
            elif "functionResponse" in part:
                result = part["functionResponse"]
                if result["id"] not in answered:
                    found.append(Entry("tool", str(result["response"].get("output", result["response"]))))
                answered.add(result["id"])
            elif part.get("text") and not part.get("thought") and not _is_context(part["text"]):
                found.append(Entry(role, part["text"]))
    return found


def _gemini(asked: Asked) -> Reply | Json:
    text = _next(read_gemini(asked.body))
    part: Json = {"text": text}
    tools = {tool["name"] for one in asked.body.get("tools", ()) for tool in one["functionDeclarations"]}
    if "complete_task" in tools:  # of a sub-agent
        found = {"SummaryOfFindings": ACKNOWLEDGED, "ExplorationTrace": [], "RelevantLocations": []}
        part = {"functionCall": {"name": "complete_task", "args": {"report": found}}}
    elif text is None and "send an agent" in read_gemini(asked.body)[-1].text:
        errand = {"agent_name": "codebase_investigator", "prompt": ERRAND}
        part = {"functionCall": {"name": "invoke_agent", "args": errand}}
    elif text is None:
        part = {"functionCall": {"name": "list_directory", "args": {"dir_path": "."}}}
    usage = {"promptTokenCount": 11, "candidatesTokenCount": 7, "thoughtsTokenCount": 2, "totalTokenCount": 20}
    parts = [{"text": "**Plan** So.", "thought": True}, part]
    if asked.body.get("generationConfig", {}).get("responseMimeType") == "application/json":
        parts = [{"text": json.dumps({"model_choice": "flash", "reasoning": "so", "next_speaker": "user"})}]
    if "<state_snapshot>" in json.dumps(asked.body.get("systemInstruction", "")):  # asks for a summary
        parts = [{"text": "<state_snapshot>In short: all is said.</state_snapshot>"}]
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}
    return Reply(events=[whole]) if "stream" in asked.path else whole


# -- what a store has kept


def read_thread(thread: Iterable[Saved]) -> list[Entry]:
    """Return what people, models and tools said in a thread, without what the program added to it."""
    return [entry for message in thread if not (message.extra or {}).get("injected") for entry in _pieces(message)]


def kept(store: Store) -> list[list[Entry]]:
    """Return all that is said up to each end of each conversation."""
    return [
        read_thread(talk.fork(at=leaf.id).thread())
        for info in store.conversations().items
        for talk in [store.conversation(info)]
        for leaf in talk.branches()
    ]


def _pieces(message: Saved) -> Iterator[Entry]:
    role = "tool" if message.role == "tool_result" else str(message.role)
    for block in message.blocks:
        if block.type == "tool_call":
            yield call_entry(str(block.tool_name), block.arguments)
        elif block.type == "content" and isinstance(block.content, str) and not _is_context(block.content):
            yield Entry(role, block.content)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content)
    return str(content or "")


def _is_context(text: str) -> bool:
    """Return True for what programs put before a prompt by themselves."""
    return re.match(r"\s*(<system-reminder>|<environment_context>|<session_context>|# AGENTS.md)", text) is not None
