"""Real traffic, over real HTTP, through the official SDKs, into a store and out again: equal, all of it.

Each file is one exchange that others recorded with a real provider. It is replayed by a server on loopback: the SDK
sends the request and gets the response; what is in the store afterwards is compared with the file, and so is what a
resumed client of ours sends as its next request. The files lie beside the project and are not part of it: without them
these tests are skipped, and the dialects' own tests have data of their own.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

import hitherto
from hitherto import Store
from hitherto.chat import Client, Config, new_client
from hitherto.dialects import dialect

from ..support.provider import Asked, Provider, Reply, provider

Json = Any
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "provider_payloads"
KINDS = ("anthropic", "openai_chat", "openai_responses", "gemini")
FILES = [path for kind in KINDS for path in sorted((CORPUS / kind).glob("*.json"))]

pytestmark = pytest.mark.skipif(not FILES, reason="the corpus is not here")


def exchanges() -> Iterator[Any]:
    for path in FILES:
        found = json.loads(path.read_text())
        if found["source"].get("status", 200) == 200 and found["request_messages"]:
            yield pytest.param(path, id=f"{path.parent.name}-{path.stem[-40:]}")


def reply(found: Json) -> Reply:
    if not found["streamed"]:
        return Reply(found["response"])
    events = [event["data"] for event in found["response_stream_events"]]
    return Reply(events=[*events, "[DONE]"] if found["provider"] == "openai_chat" else events)


def replay(answer: Reply, _: Asked) -> Reply:
    return answer


def send(server: Provider, store: Store, found: Json) -> None:
    """Through the SDK of the provider, as its users do, with nothing of the request changed by it."""
    messages, system = found["request_messages"], found["request_system"]
    streamed = {"stream": True} if found["streamed"] else {}
    if found["provider"] == "gemini":
        body = {"contents": messages} | ({"systemInstruction": system} if system else {})
        with genai.Client(api_key="k", http_options={"base_url": server.url}) as sdk:
            hitherto.record(sdk, store)
            config = types.GenerateContentConfig(http_options=types.HttpOptions(extra_body=body))
            given: Json = {"model": "m", "contents": "-", "config": config}
            if found["streamed"]:
                list(sdk.models.generate_content_stream(**given))
            else:
                sdk.models.generate_content(**given)
        return
    path, name, body = {
        "anthropic": ("/v1/messages", "messages", {"max_tokens": 9} | ({"system": system} if system else {})),
        "openai_chat": ("/chat/completions", "messages", {}),
        "openai_responses": ("/responses", "input", {"instructions": system} if system else {}),
    }[found["provider"]]
    kinds: Json = {"anthropic": anthropic.Anthropic}.get(found["provider"], openai.OpenAI)
    base = server.url if found["provider"] == "anthropic" else server.url + "/v1"
    with kinds(base_url=base, api_key="k", max_retries=0) as sdk:
        hitherto.record(sdk, store)
        module: Json = anthropic if found["provider"] == "anthropic" else openai
        body = {"model": "m", name: messages, **body, **streamed}
        if found["streamed"]:
            with sdk.post(path, body=body, cast_to=object, stream=True, stream_cls=module.Stream[object]) as stream:
                list(stream)
        else:
            sdk.post(path, body=body, cast_to=object)


def answered(found: Json) -> list[Json]:
    """The entries that the next request adds to the history: the answer in the provider's own form."""
    name = found["provider"].replace("_", "-")
    if found["streamed"]:
        assembly = dialect(name).assembly()  # compared with the SDKs' own assembly in the tests of the dialects
        for event in found["response_stream_events"]:
            if isinstance(event["data"], dict):
                assembly.feed(event["data"])
        return [message.raw for message in assembly.answer().messages]
    response = found["response"]
    if name == "anthropic":
        return [{"role": "assistant", "content": response["content"]}] if response["content"] else []
    if name == "openai-responses":
        return list(response["output"])
    choice = response["candidates"][0]["content"] if name == "gemini" else response["choices"][0]["message"]
    return [choice]


def is_history(raw: Json, name: str) -> bool:
    return name == "anthropic" or raw.get("role") not in ("system", "developer")


@pytest.mark.parametrize("path", list(exchanges()))
def test_traffic_comes_back_equal(path: Path) -> None:
    found = json.loads(path.read_text())
    name = found["provider"]
    wanted = [raw for raw in found["request_messages"] if is_history(raw, name)]
    answer = answered(found)
    with hitherto.open("memory:") as store:
        with provider(lambda _: reply(found)) as server:
            send(server, store, found)
        talk = store.latest()
        assert talk is not None
        assert [m.raw for m in talk.thread()] == wanted + answer
        assert_next_request(store, talk, found, answer)


def sessions() -> Iterator[Any]:
    """Exchanges of one recording, in order, if each request goes on from the answer before it."""
    found: dict[str, list[Json]] = {}
    for path in FILES:
        exchange = json.loads(path.read_text())
        if exchange["source"].get("status", 200) == 200 and exchange["request_messages"]:
            found.setdefault(exchange["source"]["path"], []).append(exchange)
    for name, exchanges in found.items():
        exchanges.sort(key=lambda exchange: exchange["source"].get("interaction", 0))
        if len(exchanges) > 1 and all(map(goes_on, exchanges, exchanges[1:])):
            yield pytest.param(exchanges, id=f"{exchanges[0]['provider']}-{Path(name).name[-40:]}")


def goes_on(before: Json, after: Json) -> bool:
    """Does the request hold what was asked before, and something of the answer to it?"""
    asked, sent = before["request_messages"], after["request_messages"]
    if sent[: len(asked)] != asked or len(sent) <= len(asked) + 1:
        return False
    return any(mark in json.dumps(sent[len(asked) :]) for mark in marks(answered(before)))


def marks(value: Json) -> Iterator[str]:
    """Ids and texts of an answer."""
    if isinstance(value, list):
        for item in value:
            yield from marks(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in ("text", "call_id", "id", "name") and isinstance(item, str) and len(item) > 3:
                yield json.dumps(item)[1:-1]
            yield from marks(item)


@pytest.mark.parametrize("exchanges", list(sessions()))
def test_a_session_of_traffic_is_one_thread_without_duplicates(exchanges: list[Json]) -> None:
    with hitherto.open("memory:") as store:
        for found in exchanges:
            answer = reply(found)
            with provider(partial(replay, answer)) as server:
                send(server, store, found)
        (info,) = store.conversations()
        talk = store.conversation(info.id)
        assert len(talk.branches()) == 1
        assert [m.id for m in talk.thread()] == [m.id for m in store.messages(newest_first=False) if m.role != "event"]
        given = [m for m in talk.thread() if m.role == "assistant" and "from_request" not in (m.extra or {})]
        assert len(given) == sum(len(answered(found)) for found in exchanges)


def assert_next_request(store: Store, talk: hitherto.Conversation, found: Json, answer: list[Json]) -> None:
    """A resumed client of ours sends the whole history as it was, then what is new."""
    name = found["provider"]

    def stop(asked: Asked) -> Reply:
        return Reply({"error": {"message": "enough"}}, status=400)

    with provider(stop) as server:
        kind = {"anthropic": "claude", "gemini": "gemini"}.get(name, "openai")
        base = server.url + ("/v1" if kind == "openai" else "")
        given: Json = {"api": "responses", "options": {"store": True}} if name == "openai_responses" else {}
        config = Config(kind, "m", base, "k", allow_insecure_base_url=True, max_retries=0, **given)
        client = new_client(config)
        assert isinstance(client, Client)
        with client:
            hitherto.resume(client, store, talk)
            report = hitherto.recording(client)
            assert report is not None
            assert report.resumed is not None
            repaired = bool(report.resumed.repairs)
            with pytest.raises(hitherto.ProviderError):
                client.chat("next")
        sent = server.bodies[0]
    entries = sent.get("messages") or sent.get("contents") or sent.get("input")
    history = [*found["request_messages"], *answer]
    assert entries[-1] in ({"role": "user", "content": "next"}, {"role": "user", "parts": [{"text": "next"}]}) or (
        "next" in str(entries[-1])
    )
    if not repaired:
        assert entries[:-1] == history
    elif name == "openai_responses":  # exchanges may begin in the middle: what is left out or made up was reported
        kept = [entry for entry in entries[:-1] if entry in history]
        assert len(kept) >= len(history) - len(report.resumed.repairs)
        assert kept == [raw for raw in history if raw in kept]
    else:  # an answer that calls a tool waits for its result, which is made up
        assert entries[: len(history)] == history
    if name == "anthropic" and found["request_system"]:
        assert sent["system"] == found["request_system"]
    if name == "gemini" and found["request_system"]:
        assert sent["systemInstruction"] == found["request_system"]
