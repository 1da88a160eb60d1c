"""A provider on loopback that says what it is told to: JSON, streams with pauses and breaks, errors, redirects.

It speaks real HTTP to the real SDKs, and remembers every request it got. The answers below have the shapes that the
providers document.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = Any


@dataclass
class Reply:
    """What to answer. `events` makes a stream of it; an event may be a callable, which is called when its time comes
    (to wait for something, to raise `Cut`)."""

    body: Json = None
    status: int = 200
    events: Iterable[Json] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None  # instead of a body


class Cut(Exception):
    """Close the connection here."""


@dataclass
class Asked:
    path: str
    body: Json
    headers: dict[str, str]


class Provider:
    """A server of one's own. `answer` gives a `Reply`, or a body, for each request."""

    def __init__(self, answer: Callable[[Asked], Reply | Json]) -> None:
        self.asked: list[Asked] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length", 0)))
                asked = Asked(self.path, json.loads(data or b"{}"), {k.lower(): v for k, v in self.headers.items()})
                provider.asked.append(asked)
                reply = answer(asked)
                try:
                    self._reply(reply if isinstance(reply, Reply) else Reply(reply))
                except (Cut, BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_POST  # noqa: N815  # the name is the base class's

            def _reply(self, reply: Reply) -> None:
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if reply.events is None:
                    data = json.dumps(reply.body).encode() if reply.raw is None else reply.raw
                    if "content-type" not in reply.headers:
                        self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                    return
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for event in reply.events:
                    self._event(event() if callable(event) else event)
                self.wfile.write(b"0\r\n\r\n")

            def _event(self, event: Json) -> None:
                if event is None:
                    return
                text = event if isinstance(event, str) else json.dumps(event)
                name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
                data = f"{name}data: {text}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that went away is part of the test

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def bodies(self) -> list[Json]:
        return [asked.body for asked in self.asked]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextmanager
def provider(answer: Callable[[Asked], Reply | Json]) -> Iterator[Provider]:
    server = Provider(answer)
    try:
        yield server
    finally:
        server.close()


# -- the shapes of answers


def chat_answer(text: str | None, *, calls: Iterable[tuple[str, str, Json]] = (), **more: Json) -> Json:
    """OpenAI's chat completions. A call is (id, name, arguments)."""
    message: Json = {"role": "assistant", "content": text, "refusal": None, "annotations": [], **more}
    made = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for id, name, arguments in calls
    ]
    if made:
        message["tool_calls"] = made
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls" if made else "stop", "message": message}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def chat_events(text: str) -> list[Json]:
    """The same, streamed a word at a time, with usage at the end."""

    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}

    words = [chunk({"content": word}) for word in _words(text)]
    usage = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
    usage["usage"] = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    return [chunk({"role": "assistant", "content": ""}), *words, chunk({}, "stop"), usage, "[DONE]"]


def responses_answer(items: list[Json], id: str = "resp_1") -> Json:
    """OpenAI's responses."""
    return {
        "id": id,
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 7,
        },
    }


def responses_text(text: str, id: str = "msg_1") -> Json:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": content}


def responses_events(text: str, id: str = "resp_1") -> list[Json]:
    whole = responses_answer([responses_text(text)], id)
    begun = {**whole, "status": "in_progress", "output": []}
    item = {**responses_text(""), "status": "in_progress", "content": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        *({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []} for word in _words(text)),
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": {**part, "text": text}},
        {"type": "response.output_item.done", "output_index": 0, "item": responses_text(text)},
        {"type": "response.completed", "response": whole},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def anthropic_answer(*content: Json, stop: str = "end_turn") -> Json:
    """Anthropic's messages. A text stands for a text block."""
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": blocks,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }


def anthropic_events(text: str) -> list[Json]:
    begun = {**anthropic_answer(), "stop_reason": None, "usage": {"input_tokens": 5, "output_tokens": 1}}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
        for word in _words(text)
    ]
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]


def gemini_answer(*parts: Json) -> Json:
    """Gemini's contents. A text stands for a text part."""
    said = [{"text": part} if isinstance(part, str) else part for part in parts]
    return {
        "candidates": [{"content": {"parts": said, "role": "model"}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7},
        "modelVersion": "m",
    }


def gemini_events(text: str) -> list[Json]:
    def chunk(word: str) -> Json:
        return {"candidates": [{"content": {"parts": [{"text": word}], "role": "model"}, "index": 0}]}

    words = [chunk(word) for word in _words(text)]
    last = gemini_answer()
    last["candidates"][0]["content"]["parts"] = [{"text": ""}]
    return [*words, last]


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]
