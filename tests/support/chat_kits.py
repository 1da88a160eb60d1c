"""Chats with providers on loopback: one kit for each API, so that a test says its sentence once.

A `Kit` knows how an API writes answers, calls and errors. A `Script` answers requests in its words. A `Talk` has a
client of one provider; it makes the awaited client look like the one that waits.
"""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from hitherto.chat import AsyncClient, Client, Config, Tool, new_async_client
from hitherto.chat import new_client as new_any_client

from .provider import (
    Asked,
    Json,
    Provider,
    Reply,
    anthropic_answer,
    chat_answer,
    gemini_answer,
    responses_answer,
    responses_text,
)

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
KEY = "sk-a-key-that-nobody-may-see-0123456789"


# -- the providers, alike


@dataclass(frozen=True)
class Calls:
    """An answer that asks for tools: (id, name, arguments) each. Arguments that are text go out as they are."""

    calls: tuple[tuple[str, str, Json], ...]
    text: str | None = None


@dataclass(frozen=True)
class Parts:
    """An answer made of a provider's own parts, blocks or items."""

    parts: tuple[Json, ...]


Scripted = str | Calls | Parts | Reply | Callable[[Asked], Any]


@dataclass(frozen=True)
class Seen:
    """A tool result as it stands in a request."""

    call: str  # its id, or its name where there are no ids
    content: Json
    error: bool


class Kit:
    """One provider's shapes, under names that are the same for all of them."""

    def __init__(self, name: str, provider: str, shape: str) -> None:
        self.name = name
        self.provider = provider
        self.shape = shape

    def config(self, url: str, **more: Any) -> Config:
        given: dict[str, Any] = {
            "provider": self.provider,
            "model": "m-1",
            "base_url": url + ("/v1" if "openai" in self.provider else ""),
            "api_key": KEY,
            "allow_insecure_base_url": True,
            "api": "responses" if self.shape == "responses" else "chat",
            "max_retries": 0,
        }
        return Config(**{**given, **more})

    # -- answers

    def body(self, answer: str | Calls | Parts) -> Json:
        made: Json = getattr(self, f"_{self.shape}_body")(answer)
        return made

    def events(self, body: Json) -> list[Json]:
        """The same answer as a stream."""
        made: list[Json] = getattr(self, f"_{self.shape}_events")(body)
        return made

    def _anthropic_body(self, answer: str | Calls | Parts) -> Json:
        if isinstance(answer, str):
            return anthropic_answer(answer)
        if isinstance(answer, Parts):
            return anthropic_answer(*answer.parts)
        uses = [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in answer.calls]
        return anthropic_answer(*([answer.text] if answer.text else []), *uses, stop="tool_use")

    def _chat_body(self, answer: str | Calls | Parts) -> Json:
        if isinstance(answer, str):
            return chat_answer(answer)
        if isinstance(answer, Parts):
            return chat_answer(None, content=list(answer.parts))
        made = chat_answer(answer.text, calls=answer.calls)
        calls = made["choices"][0]["message"].get("tool_calls", [])
        for call, (_, _, given) in zip(calls, answer.calls, strict=True):
            if isinstance(given, str):
                call["function"]["arguments"] = given
        return made

    def _responses_body(self, answer: str | Calls | Parts) -> Json:
        if isinstance(answer, str):
            return responses_answer([responses_text(answer)])
        if isinstance(answer, Parts):
            return responses_answer(list(answer.parts))
        items: list[Json] = [responses_text(answer.text)] if answer.text else []
        for id, name, given in answer.calls:
            written = given if isinstance(given, str) else json.dumps(given)
            call = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": written}
            items.append({**call, "status": "completed"})
        return responses_answer(items)

    def _gemini_body(self, answer: str | Calls | Parts) -> Json:
        if isinstance(answer, str):
            return gemini_answer(answer)
        if isinstance(answer, Parts):
            return gemini_answer(*answer.parts)
        calls = [{"functionCall": {"name": name, "args": given}} for _, name, given in answer.calls]
        return gemini_answer(*([answer.text] if answer.text else []), *calls)

    # -- streams

    def _anthropic_events(self, body: Json) -> list[Json]:
        begun = {**body, "content": [], "stop_reason": None, "usage": {"input_tokens": 5, "output_tokens": 1}}
        events: list[Json] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
        for index, block in enumerate(body["content"]):
            start, deltas = dict(block), []
            if block["type"] == "text":
                start["text"] = ""
                deltas = [{"type": "text_delta", "text": word} for word in in_words(block["text"])]
            elif block["type"] == "tool_use":
                start["input"] = {}
                deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
            events.append({"type": "content_block_start", "index": index, "content_block": start})
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        ending = {"stop_reason": body["stop_reason"], "stop_sequence": None}
        events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 2}})
        return [*events, {"type": "message_stop"}]

    def _chat_events(self, body: Json) -> list[Json]:
        head = {"id": body["id"], "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choice = body["choices"][0]
        message = choice["message"]
        deltas: list[Json] = [{"role": "assistant", "content": "" if message["content"] is not None else None}]
        deltas += [{"content": word} for word in in_words(message["content"] or "")]
        for index, call in enumerate(message.get("tool_calls", [])):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            begun = {**call, "index": index, "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [begun]})
            for piece in (arguments[:3], arguments[3:]):
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        chunks = [{**head, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
        end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
        return [*chunks, end, {**head, "choices": [], "usage": body["usage"]}, "[DONE]"]

    def _responses_events(self, body: Json) -> list[Json]:
        events: list[Json] = [{"type": "response.created", "response": {**body, "status": "in_progress", "output": []}}]
        for index, item in enumerate(body["output"]):
            begun = {**item, "content": []} if item["type"] == "message" else item
            events.append({"type": "response.output_item.added", "output_index": index, "item": begun})
            for part in item["content"] if item["type"] == "message" else []:
                place = {"item_id": item["id"], "output_index": index, "content_index": 0}
                words = in_words(part["text"]) if part["type"] == "output_text" else []
                events += [{"type": "response.output_text.delta", **place, "delta": word} for word in words]
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        events.append({"type": "response.completed", "response": body})
        return [{**event, "sequence_number": number} for number, event in enumerate(events)]

    def _gemini_events(self, body: Json) -> list[Json]:
        parts: list[Json] = []
        for part in body["candidates"][0]["content"]["parts"]:
            parts += [{"text": word} for word in in_words(part["text"])] if part.keys() == {"text"} else [part]
        chunks: list[Json] = [{"candidates": [{"content": {"parts": [p], "role": "model"}, "index": 0}]} for p in parts]
        end = {**body, "candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": "STOP"}]}
        return [*chunks, end]

    # -- requests

    def history(self, body: Json) -> list[Json]:
        """The conversation in a request, without the system prompt."""
        name = {"anthropic": "messages", "chat": "messages", "responses": "input", "gemini": "contents"}[self.shape]
        return [entry for entry in body[name] if entry.get("role") not in ("system", "developer")]

    def prompts(self, body: Json) -> list[str]:
        """Every system prompt in a request, wherever it stands, in the order of the wire."""
        found: list[str] = []
        if self.shape == "gemini":
            found += [part["text"] for part in body.get("systemInstruction", {"parts": []})["parts"]]
        found += [body[name] for name in ("system", "instructions") if name in body]
        entries = body.get("messages", body.get("input", body.get("contents")))
        return found + [entry["content"] for entry in entries if entry.get("role") in ("system", "developer")]

    def words(self, body: Json) -> list[str]:
        """What was said, in order: each entry's text, if it has any."""
        return [text for entry in self.history(body) if (text := self._text(entry))]

    def _text(self, entry: Json) -> str:
        content = entry.get("parts", entry.get("content")) or ""
        if isinstance(content, str):
            return content if entry.get("role") in ("user", "assistant", "model") else ""
        return "".join(part.get("text", "") for part in content)

    def results(self, body: Json) -> list[list[Seen]]:
        """The tool results of a request, entry by entry."""
        found = [list(self._results(entry)) for entry in self.history(body)]
        return [results for results in found if results]

    def _results(self, entry: Json) -> Iterator[Seen]:
        if self.shape == "anthropic" and isinstance(entry["content"], list):
            for block in entry["content"]:
                if block["type"] == "tool_result":
                    yield Seen(block["tool_use_id"], block["content"], block.get("is_error", False))
        elif self.shape == "gemini":
            for part in entry["parts"]:
                if "functionResponse" in part:
                    ((kind, value),) = part["functionResponse"]["response"].items()
                    yield Seen(part["functionResponse"]["name"], value, kind == "error")
        elif entry.get("role") == "tool":
            yield Seen(entry["tool_call_id"], entry["content"], "failed:" in entry["content"])
        elif entry.get("type") == "function_call_output":
            yield Seen(entry["call_id"], entry["output"], "failed:" in str(entry["output"]))

    def call_name(self, id: str, name: str) -> str:
        """What a result calls its call by."""
        return name if self.shape == "gemini" else id

    def image(self, data: bytes) -> Json:
        """A PNG as the provider documents it."""
        encoded = base64.b64encode(data).decode()
        if self.shape == "anthropic":
            return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
        if self.shape == "gemini":
            return {"inlineData": {"mimeType": "image/png", "data": encoded}}
        url = f"data:image/png;base64,{encoded}"
        if self.shape == "chat":
            return {"type": "image_url", "image_url": {"url": url}}
        return {"type": "input_image", "image_url": url, "detail": "auto"}


def in_words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:] if text else []


CLAUDE = Kit("claude", "claude", "anthropic")
OPENAI = Kit("openai-chat", "openai", "chat")
RESPONSES = Kit("openai-responses", "openai", "responses")
COMPATIBLE = Kit("openai-compatible", "openai-compatible", "chat")
GEMINI = Kit("gemini", "gemini", "gemini")
KITS = (CLAUDE, OPENAI, RESPONSES, COMPATIBLE, GEMINI)


class Script:
    """Answers one after the other, the last one again and again; streamed if that is asked for."""

    def __init__(self, kit: Kit, answers: Iterable[Scripted]) -> None:
        self.kit = kit
        self.answers = list(answers)
        self.count = 0

    def __call__(self, asked: Asked) -> Any:
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        if callable(answer):
            answer = answer(asked)
        if not isinstance(answer, (str, Calls, Parts)):
            return answer
        body = self.kit.body(answer)
        streamed = asked.body.get("stream") is True or "streamGenerateContent" in asked.path
        return Reply(events=self.kit.events(body)) if streamed else body


# -- both colours, alike


class Talk:
    """A client of either colour that is waited for."""

    def __init__(self, config: Config, colour: str, server: Provider) -> None:
        self.server = server
        self.runner = asyncio.Runner() if colour == "async" else None
        self.client: Client | AsyncClient = new_awaited_client(config) if self.runner else new_client(config)

    @property
    def waiting(self) -> Client:
        assert isinstance(self.client, Client)
        return self.client

    def _done(self, name: str, *given: Any) -> Any:
        if isinstance(self.client, AsyncClient):
            assert self.runner is not None
            return self.runner.run(getattr(self.client, name)(*given))
        return getattr(self.client, name)(*given)

    def chat(self, prompt: Any) -> str:
        answer: str = self._done("chat", prompt)
        return answer

    def retry(self) -> str:
        answer: str = self._done("retry")
        return answer

    def ask(self, prompt: Any, schema: Any) -> Any:
        return self._done("ask", prompt, schema)

    def compact(self, *given: Any) -> str:
        summary: str = self._done("compact", *given)
        return summary

    def stream(self, prompt: Any) -> list[str]:
        return self._pieces(lambda: self.client.stream(prompt))

    def stream_retry(self) -> list[str]:
        return self._pieces(self.client.stream_retry)

    def _pieces(self, start: Callable[[], Any]) -> list[str]:
        if isinstance(self.client, Client):
            return list(start())

        async def collect() -> list[str]:
            return [piece async for piece in start()]

        assert self.runner is not None
        return self.runner.run(collect())

    def say(self, prompt: Any, streamed: bool) -> str:
        return "".join(self.stream(prompt)) if streamed else self.chat(prompt)

    def close(self) -> None:
        try:
            self._done("close")
        finally:
            if self.runner is not None:
                self.runner.close()


def new_client(config: Config) -> Client:
    client = new_any_client(config)
    assert isinstance(client, Client)
    return client


def new_awaited_client(config: Config) -> AsyncClient:
    client = new_async_client(config)
    assert isinstance(client, AsyncClient)
    return client


@contextmanager
def serving(answer: Callable[[Asked], Any]) -> Iterator[Provider]:
    """A provider for one test. A server looks twice a second whether it is to stop, or when somebody comes: so that
    somebody comes."""
    server = Provider(answer)
    try:
        yield server
    finally:
        closing = threading.Thread(target=server.close)
        closing.start()
        while closing.is_alive():
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 1).close()
            closing.join(0.01)


@contextmanager
def talking(kit: Kit, *answers: Scripted, colour: str = "sync", **config: Any) -> Iterator[Talk]:
    """A client of this provider, and the provider, which gives these answers."""
    with serving(Script(kit, answers)) as server:
        talk = Talk(kit.config(server.url, **config), colour, server)
        try:
            yield talk
        finally:
            talk.close()


def tool(handler: Any, name: str = "look", **properties: Any) -> Tool:
    return Tool(name, "looks", {"type": "object", "properties": properties}, handler)
