"""A model that thinks in three rules, for the provider on loopback: it speaks all four wires, whole and in a stream.

Asked about the weather, it calls the tool; given the tool's result, it reports it; otherwise it repeats what was said.
It reads all it needs from the request, so that several frameworks can talk to it at once.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

from tests.support.provider import Asked, Json, Reply

_numbers = itertools.count(1)


def answer(asked: Asked) -> Reply:
    """The answer to a request of any of the four wires."""
    body = asked.body
    if asked.path.endswith("/chat/completions"):
        made = _chat(*_think(*_read_chat(body["messages"])))
        return Reply(events=[*_chat_events(made), "[DONE]"]) if body.get("stream") else Reply(made)
    if asked.path.endswith("/responses"):
        made = _responses(*_think(*_read_responses(body["input"])))
        return Reply(events=_responses_events(made)) if body.get("stream") else Reply(made)
    if "/messages" in asked.path:
        made = _anthropic(*_think(*_read_anthropic(body["messages"])))
        return Reply(events=_anthropic_events(made)) if body.get("stream") else Reply(made)
    made = _gemini(*_think(*_read_gemini(body["contents"])))
    return Reply(events=[made]) if "stream" in asked.path else Reply(made)


def _think(question: str, results: list[str]) -> tuple[str, str | None]:
    """What to say, and the city whose weather is to be looked up."""
    if results:
        return f"They say: {results[-1]}", None
    if "weather in" in question:
        return "", question.partition("weather in ")[2].split("?")[0].split()[0]
    return f"You said: {question}", None


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else part.get("text") or "" for part in content or ())


# -- what a request says: the last question, and the results of tools since then


def _read_chat(messages: list[Json]) -> tuple[str, list[str]]:
    question, results = "", list[str]()
    for message in messages:
        if message["role"] == "user":
            question, results = _text(message["content"]), []
        elif message["role"] == "tool":
            results.append(_text(message["content"]))
    return question, results


def _read_responses(items: Json) -> tuple[str, list[str]]:
    question, results = (items, []) if isinstance(items, str) else ("", list[str]())
    for item in [] if isinstance(items, str) else items:
        if item.get("role") == "user":
            question, results = _text(item["content"]), []
        elif item.get("type") == "function_call_output":
            results.append(_text(item["output"]))
    return question, results


def _read_anthropic(messages: list[Json]) -> tuple[str, list[str]]:
    question, results = "", list[str]()
    for message in messages:
        if message["role"] == "user":
            parts = [] if isinstance(message["content"], str) else message["content"]
            found = [_text(part.get("content")) for part in parts if part["type"] == "tool_result"]
            question, results = (question, found) if found else (_text(message["content"]), [])
    return question, results


def _read_gemini(contents: list[Json]) -> tuple[str, list[str]]:
    question, results = "", list[str]()
    for content in contents:
        parts = content["parts"]
        found = [json.dumps(part["functionResponse"]["response"]) for part in parts if "functionResponse" in part]
        if found:
            results = found
        elif content.get("role", "user") == "user":
            question, results = _text(parts), []
    return question, results


# -- what an answer says


def _chat(text: str, city: str | None) -> Json:
    message: Json = {"role": "assistant", "content": text or None, "refusal": None, "annotations": []}
    if city:
        call = {"name": "get_weather", "arguments": json.dumps({"city": city})}
        message["tool_calls"] = [{"id": f"call_{next(_numbers)}", "type": "function", "function": call}]
    return {
        "id": f"chatcmpl-{next(_numbers)}",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls" if city else "stop", "message": message}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def _chat_events(whole: Json) -> Iterator[Json]:
    [choice] = whole["choices"]
    calls = [{**call, "index": n} for n, call in enumerate(choice["message"].get("tool_calls", []))]
    delta = {"role": "assistant", "content": choice["message"]["content"], **({"tool_calls": calls} if calls else {})}
    about = {name: whole[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    yield about | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield about | {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    yield about | {"choices": [], "usage": whole["usage"]}


def _responses(text: str, city: str | None) -> Json:
    item: dict[str, Any] = {
        "id": f"msg_{next(_numbers)}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
    }
    item["content"] = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    if city:
        item = {"id": f"fc_{next(_numbers)}", "type": "function_call", "status": "completed", "name": "get_weather"}
        item |= {"call_id": f"call_{next(_numbers)}", "arguments": json.dumps({"city": city})}
    return {
        "id": f"resp_{next(_numbers)}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "m",
        "output": [item],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": 7,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 10,
        },
    }


def _responses_events(whole: Json) -> list[Json]:
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    [item] = whole["output"]
    events = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return [event | {"sequence_number": n} for n, event in enumerate(events)]


def _anthropic(text: str, city: str | None) -> Json:
    content: Json = {"type": "text", "text": text}
    if city:
        content = {"type": "tool_use", "id": f"toolu_{next(_numbers)}", "name": "get_weather", "input": {"city": city}}
    return {
        "id": f"msg_{next(_numbers)}",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [content],
        "stop_reason": "tool_use" if city else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }


def _anthropic_events(whole: Json) -> Iterator[Json]:
    [block] = whole["content"]
    yield {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}}
    if block["type"] == "text":
        yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": block["text"]}}
    else:
        yield {"type": "content_block_start", "index": 0, "content_block": {**block, "input": {}}}
        given = json.dumps(block["input"])
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": given}}
    yield {"type": "content_block_stop", "index": 0}
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 3}}
    yield {"type": "message_stop"}


def _gemini(text: str, city: str | None) -> Json:
    part: Json = {"functionCall": {"name": "get_weather", "args": {"city": city}}} if city else {"text": text}
    return {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 3, "totalTokenCount": 10},
        "modelVersion": "m",
        "responseId": f"r{next(_numbers)}",
    }
