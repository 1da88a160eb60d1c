"""Calls and their results, told to another provider: in the shape that this provider takes.

The provider on loopback refuses what the real one refuses: an answer whose calls are not all answered by the next
entry, and a result without its call.
"""

from collections.abc import Callable
from typing import Any

import openai
import pytest

import hitherto
from hitherto import Block, Message, Store
from hitherto.chat import Client, Config, new_client
from hitherto.dialects._types import joins_entry
from hitherto.errors import ProviderError

from ..support.provider import (
    Asked,
    Provider,
    Reply,
    anthropic_answer,
    chat_answer,
    gemini_answer,
    provider,
    responses_answer,
    responses_text,
)

Json = Any


def gemini_pairs(body: Json) -> list[tuple[list[str], list[str]]]:
    """The names of calls and of results in each entry."""
    return [
        (
            [part["functionCall"]["name"] for part in content["parts"] if "functionCall" in part],
            [part["functionResponse"]["name"] for part in content["parts"] if "functionResponse" in part],
        )
        for content in body["contents"]
    ]


def anthropic_pairs(body: Json) -> list[tuple[list[str], list[str]]]:
    found = []
    for message in body["messages"]:
        blocks = message["content"] if isinstance(message["content"], list) else []
        found.append(
            (
                [block["id"] for block in blocks if block["type"] == "tool_use"],
                [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"],
            )
        )
    return found


def strict(asked: Asked) -> Reply | Json:
    """Answers a history only if each entry with calls is followed by all their results, and by no others."""
    is_gemini = "enerateContent" in asked.path
    waiting: list[str] = []
    for called, answered in gemini_pairs(asked.body) if is_gemini else anthropic_pairs(asked.body):
        if sorted(answered) != sorted(waiting):
            return Reply({"error": {"message": "calls and results do not match"}}, status=400)
        waiting = called
    return gemini_answer("fine") if is_gemini else anthropic_answer("fine")


def client_at(server: Provider, name: str) -> Client:
    client = new_client(Config(name, "m", server.url, "k", allow_insecure_base_url=True, max_retries=0))
    assert isinstance(client, Client)
    return client


def goes_on(store: Store, name: str) -> tuple[list[tuple[list[str], list[str]]], tuple[str, ...]]:
    """Resume the latest conversation with another provider; what it was told of calls, and what is said to be lost."""
    talk = store.latest()
    assert talk is not None
    with provider(strict) as server, client_at(server, name) as client:
        hitherto.resume(client, store, talk, convert=True)
        resumed = hitherto.recording(client).resumed
        assert resumed is not None
        assert client.chat("and now?") == "fine"
    pairs = gemini_pairs if name == "gemini" else anthropic_pairs
    return pairs(server.bodies[0]), resumed.losses


def recorded(store: Store, path: str, field: str, history: list[Json], answer: Json) -> None:
    with (
        provider(lambda _: answer) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as sdk,
    ):
        hitherto.record(sdk, store)
        sdk.post(path, body={"model": "m", field: history}, cast_to=object)


def chat(store: Store) -> None:
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "get", "arguments": f'{{"x":{n}}}'}} for n in (1, 2)
    ]
    history = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
    ]
    recorded(store, "/chat/completions", "messages", history, chat_answer("done"))


def responses(store: Store) -> None:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "get", "arguments": f'{{"x":{n}}}'} for n in (1, 2)]
    results = [{"type": "function_call_output", "call_id": f"c{n}", "output": "sunny"} for n in (1, 2)]
    history = [{"role": "user", "content": "weather?"}, *calls, *results]
    recorded(store, "/responses", "input", history, responses_answer([responses_text("done")]))


def by_hand(store: Store) -> None:
    talk = store.start()
    talk.append(Message.user("weather?"))
    talk.append(Message.assistant([Block.tool_call(f"c{n}", "get", {"x": n}) for n in (1, 2)]))
    talk.append(Message.tool_result("c1", "one"))
    talk.append(Message.tool_result("c2", "two"))
    talk.append(Message.assistant("done"))


SOURCES: dict[str, Callable[[Store], None]] = {"chat": chat, "responses": responses, "by hand": by_hand}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["gemini", "claude"])
def test_parallel_calls_and_their_results_are_told_in_one_entry_each(source: str, name: str, store: Store) -> None:
    SOURCES[source](store)
    pairs, losses = goes_on(store, name)
    named = ["get", "get"] if name == "gemini" else ["c1", "c2"]
    assert pairs == [([], []), (named, []), ([], named), ([], []), ([], [])]
    assert losses == ()  # the name of each call is known


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["gemini", "claude"])
def test_told_in_several_entries_they_are_refused(
    source: str, name: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    module = "gemini" if name == "gemini" else "anthropic"
    monkeypatch.setattr(f"hitherto.dialects.{module}.joins_entry", lambda *_, **__: False)
    SOURCES[source](store)
    with pytest.raises(ProviderError, match="400"):
        goes_on(store, name)


@pytest.mark.parametrize("name", ["gemini", "claude"])
def test_a_call_that_openai_ran_itself_is_left_out_with_its_result(name: str, store: Store) -> None:
    call = {
        "type": "mcp_call",
        "id": "mcp_1",
        "server_label": "wiki",
        "name": "ask",
        "arguments": "{}",
        "output": "an answer",
    }
    history = [{"role": "user", "content": "ask the wiki"}]
    recorded(store, "/responses", "input", history, responses_answer([call, responses_text("it says so")]))
    pairs, losses = goes_on(store, name)
    assert all(pair == ([], []) for pair in pairs)
    assert any("ran itself" in loss for loss in losses)


def test_what_a_provider_wrote_is_not_joined() -> None:
    """Entries that were heard come back as they were, however many there are."""
    result = Message.tool_result("a", "1")
    assert not joins_entry(result, result, is_built=False, was_built=False)
    assert joins_entry(result, result, is_built=True, was_built=False)
    assert not joins_entry(Message.assistant("a"), Message.assistant("b"), is_built=True, was_built=False)
    assert not joins_entry(Message.user("a"), Message.user("b"), is_built=True, was_built=True)
