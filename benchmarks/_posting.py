"""Turns of four providers as plain HTTP: bodies that are made before the clock starts, and answers that are made up.

An SDK takes longer over a long history than recording does, so that the difference of two of its turns says little.
Here nothing is between the clock and the recorder but `httpx2`.
"""

import json
from typing import Any, NamedTuple

import httpx2

import hitherto
from hitherto import Message

Json = Any
DIALECTS = ("openai-chat", "openai-responses", "anthropic", "gemini")
_PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
}
_FIELDS = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}


class Turn(NamedTuple):
    """One request, its answer, and the messages that it adds, for the same by hand."""

    body: bytes
    answer: bytes
    question: Message
    said: Message


def history(dialect: str, size: int) -> list[Json]:
    """A history of so many messages, an answer at its end."""
    words = [f"Message {n}. " + "It goes on for a while. " * 8 for n in range(size)]
    return [_entry(dialect, n % 2 == 1, text) for n, text in enumerate(words)]


def turns(dialect: str, size: int, count: int) -> list[Turn]:
    """A turn that brings the history, and `count` turns more."""
    entries, found = history(dialect, size), []
    for n in range(count + 1):
        asked = f"And {n}?"
        answer = f"Yes, {n}. " * 25  # no answer is like another: what is cleaned once must not spare the next one
        question, said = _entry(dialect, False, asked), _entry(dialect, True, answer)
        entries.append(question)
        body = json.dumps(_request(dialect, entries), separators=(",", ":"), ensure_ascii=False).encode()
        by_hand = Message.user(asked, raw=question), Message.assistant(answer, raw=said)
        found.append(Turn(body, json.dumps(_answer(dialect, n, said)).encode(), *by_hand))
        entries.append(said)
    return found


class Posting:
    """A client whose turns are made one after the other."""

    def __init__(self, given: list[Turn], dialect: str, store: hitherto.Store | None) -> None:
        self._given = given
        self._path = _PATHS[dialect]
        self._answer = b""
        self.client = httpx2.Client(base_url="http://localhost", transport=httpx2.MockTransport(self._reply))
        if store is not None:
            hitherto.record(self.client, store)

    def __enter__(self) -> "Posting":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def _reply(self, _: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=self._answer)

    def turn(self, n: int) -> None:
        self._answer = self._given[n].answer
        self.client.post(self._path, content=self._given[n].body)


def _entry(dialect: str, is_answer: bool, text: str) -> Json:
    role = "assistant" if is_answer else "user"
    if dialect == "gemini":
        return {"role": "model" if is_answer else "user", "parts": [{"text": text}]}
    if dialect == "openai-responses" and is_answer:
        return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}
    return {"role": role, "content": text}


def _request(dialect: str, entries: list[Json]) -> Json:
    if dialect == "gemini":
        return {_FIELDS[dialect]: entries, "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    prompt = {"openai-responses": "instructions", "anthropic": "system"}.get(dialect)
    if prompt is None:
        return {"messages": [{"role": "system", "content": "Be brief."}, *entries], "model": "m"}
    return {"model": "m", _FIELDS[dialect]: entries, prompt: "Be brief."}


def _answer(dialect: str, n: int, entry: Json) -> Json:
    if dialect == "openai-chat":
        choice = {"index": 0, "finish_reason": "stop", "message": entry}
        return {"id": f"c{n}", "object": "chat.completion", "model": "m", "choices": [choice],
                "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}  # fmt: skip
    if dialect == "openai-responses":
        said = {"id": f"msg_{n}", "status": "completed", **entry}
        return {"id": f"r{n}", "object": "response", "status": "completed", "model": "m", "output": [said],
                "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}}  # fmt: skip
    if dialect == "anthropic":
        return {"id": f"m{n}", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
                "content": [{"type": "text", "text": entry["content"]}],
                "usage": {"input_tokens": 5, "output_tokens": 2}}  # fmt: skip
    candidate = {"content": entry, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": f"r{n}"}
