"""hitherto, recording the SDK of OpenAI."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import openai

import hitherto

from . import Model

NAME = f"hitherto {hitherto.__version__}"
_KEY = b"k" * 32


@contextmanager
def _sdk(folder: str, message: Callable[[], dict[str, Any]], key: bytes | None = None) -> Iterator[tuple[Any, Any]]:
    """The store, and an SDK that is recorded; `message` answers in the place of the model."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message()}}
        return httpx2.Response(
            200, json={"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        )

    client = openai.OpenAI(api_key="none", http_client=httpx2.Client(transport=httpx2.MockTransport(answer)))
    path = os.path.join(folder, "chats.db")
    with hitherto.open(path, key=key) as store, hitherto.recording(hitherto.record(client, store)):
        yield store, client


def _turn(store: Any, client: Any, question: str, **more: Any) -> None:
    with hitherto.into(store.ensure("compared")) as talk:
        messages = [*hitherto.history(talk), {"role": "user", "content": question}]
        client.chat.completions.create(model="m", messages=messages, **more)


def ask(folder: str, question: str, model: Model, turns: int = 1) -> None:
    with _sdk(folder, lambda: {"content": model()}) as (store, client):
        for number in range(turns):
            _turn(store, client, f"{question} {number}")


def ask_with_tool(folder: str, arguments: str, tool: Model) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    with _sdk(folder, lambda: {"content": None, "tool_calls": [call]}) as (store, client):
        _turn(store, client, "Look.")
        tool()


def read(folder: str) -> str:
    with hitherto.open(os.path.join(folder, "chats.db")) as store:
        return repr(list(store.messages()))


def erase(folder: str) -> None:
    with hitherto.open(os.path.join(folder, "chats.db")) as store:
        store.purge(store.ensure("compared"), reason="user-requested")


def ask_sealed(folder: str, question: str) -> None:
    with _sdk(folder, lambda: {"content": "answer"}, _KEY) as (store, client):
        _turn(store, client, question)


def read_with_another_key(folder: str) -> str:
    with hitherto.open(os.path.join(folder, "chats.db"), key=b"x" * 32) as store:
        return repr(list(store.messages()))
