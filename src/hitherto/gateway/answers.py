"""Write a kept answer as its provider would send it, whole or as a stream.

The content is the provider's own JSON, as it was kept. The frame around it (ids, counts, the events of a stream) is
made anew, so that the SDKs read it; a stream has one piece for each block.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..dialects import Raw
from ..model import Message, Usage

__all__ = ["Body", "write_answer"]

_EVENTS = "text/event-stream"
_JSON = "application/json"


class Body(NamedTuple):
    """The body of an answer."""

    content_type: str
    data: bytes


def write_answer(
    dialect: str, messages: Sequence[Message], raws: Sequence[Raw], request: Mapping[str, Any], path: str
) -> Body:
    """Return the answer that these messages were, to a request on this path. `raws` are their own JSON."""
    about: dict[str, Any] = dict(messages[-1].extra or {})
    usage = messages[-1].usage or Usage()
    model = about.get("model") or request.get("model") or ""
    is_streamed = bool(request.get("stream")) or path.endswith(":streamGenerateContent")
    made = _WRITERS[dialect](raws, about, usage, model)
    if not is_streamed:
        return Body(_JSON, json.dumps(made).encode())
    return Body(_EVENTS, "".join(_STREAMS[dialect](made)).encode())


def _event(event: Mapping[str, Any]) -> str:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


# -- Anthropic


def _anthropic(raws: Sequence[Raw], about: Mapping[str, Any], usage: Usage, model: str) -> dict[str, Any]:
    content: list[Any] = []
    for raw in raws:
        said = raw.get("content")
        content += said if isinstance(said, list) else [{"type": "text", "text": said or ""}]
    is_call = any(block.get("type") == "tool_use" for block in content)
    return {
        "id": about.get("response_id") or "msg_replayed",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": about.get("stop_reason") or ("tool_use" if is_call else "end_turn"),
        "stop_sequence": about.get("stop_sequence"),
        "usage": {
            "input_tokens": usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens,
            "output_tokens": usage.output_tokens,
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": usage.cache_write_tokens,
        },
    }


def _anthropic_stream(made: dict[str, Any]) -> Iterator[str]:
    begun = {**made, "content": [], "stop_reason": None, "stop_sequence": None}
    yield _event({"type": "message_start", "message": begun})
    for index, block in enumerate(made["content"]):
        begin, deltas = _anthropic_block(block)
        yield _event({"type": "content_block_start", "index": index, "content_block": begin})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": index, "delta": delta})
        yield _event({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": made["stop_reason"], "stop_sequence": made["stop_sequence"]}
    yield _event({"type": "message_delta", "delta": delta, "usage": made["usage"]})
    yield _event({"type": "message_stop"})


def _anthropic_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    kind = block.get("type")
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text", "")}]
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(block.get("input"))}]
    if kind == "thinking":
        said = {"type": "thinking_delta", "thinking": block.get("thinking", "")}
        signed = {"type": "signature_delta", "signature": block.get("signature", "")}
        return {**block, "thinking": "", "signature": ""}, [said, signed]
    return block, []


# -- OpenAI


def _chat(raws: Sequence[Raw], about: Mapping[str, Any], usage: Usage, model: str) -> dict[str, Any]:
    message = dict(raws[0]) if raws else {"role": "assistant", "content": ""}
    finish = about.get("finish_reason") or ("tool_calls" if message.get("tool_calls") else "stop")
    return {
        "id": about.get("response_id") or "chatcmpl-replayed",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }


def _chat_stream(made: dict[str, Any]) -> Iterator[str]:
    head = {**made, "object": "chat.completion.chunk"}
    (choice,) = made["choices"]
    delta = dict(choice["message"])
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    usage = head.pop("usage")
    yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    yield _event({**head, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _responses(raws: Sequence[Raw], about: Mapping[str, Any], usage: Usage, model: str) -> dict[str, Any]:
    return {
        "id": about.get("response_id") or "resp_replayed",
        "object": "response",
        "created_at": 0,
        "status": about.get("status") or "completed",
        "model": model,
        "output": list(raws),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {"cached_tokens": usage.cache_read_tokens},
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }


def _responses_stream(made: dict[str, Any]) -> Iterator[str]:
    for number, event in enumerate(_responses_events(made)):
        yield _event({**event, "sequence_number": number})


def _responses_events(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": {**made, "status": "in_progress", "output": []}}
    for index, item in enumerate(made["output"]):
        yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
        for at, part in enumerate(item.get("content") or [] if item.get("type", "message") == "message" else []):
            place = {"item_id": item.get("id", ""), "output_index": index, "content_index": at}
            said = part.get("text") if part.get("type") == "output_text" else None
            empty = part if said is None else {**part, "text": ""}
            yield {"type": "response.content_part.added", **place, "part": empty}
            if said is not None:
                yield {"type": "response.output_text.delta", **place, "delta": said, "logprobs": []}
                yield {"type": "response.output_text.done", **place, "text": said, "logprobs": []}
            yield {"type": "response.content_part.done", **place, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": made}


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item before its content has come."""
    empty = {"content": [], "arguments": "", "input": ""}
    return {**item, **{name: value for name, value in empty.items() if name in item}}


# -- Gemini


def _gemini(raws: Sequence[Raw], about: Mapping[str, Any], usage: Usage, model: str) -> dict[str, Any]:
    parts = [part for raw in raws for part in _list(raw.get("parts"))]
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": parts},
                "finishReason": about.get("finishReason") or "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {
            "promptTokenCount": usage.input_tokens,
            "candidatesTokenCount": usage.output_tokens - usage.reasoning_tokens,
            "totalTokenCount": usage.input_tokens + usage.output_tokens,
        },
        "modelVersion": model,
    }


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _gemini_stream(made: dict[str, Any]) -> Iterator[str]:
    yield _event(made)


_WRITERS: dict[str, Callable[[Sequence[Raw], Mapping[str, Any], Usage, str], dict[str, Any]]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}
_STREAMS: dict[str, Callable[[dict[str, Any]], Iterable[str]]] = {
    "anthropic": _anthropic_stream,
    "openai-chat": _chat_stream,
    "openai-responses": _responses_stream,
    "gemini": _gemini_stream,
}
