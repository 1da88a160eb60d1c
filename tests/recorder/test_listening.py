"""Listening to whatever speaks a known wire: plain HTTP clients, transports that make up their responses, aiohttp.

Real HTTP to a provider on loopback, except where the transport that answers by itself is what is tested.
Requirements: C10.
"""

import asyncio
import gc
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from google import genai

import hitherto
from hitherto import Store
from hitherto.recorder import _calls

from ..support.provider import Asked, Provider, Reply, chat_answer, chat_events, gemini_events, provider
from .test_belonging import closed, create, opened, threads  # noqa: F401  # a fixture that is used
from .test_recorder import user

Json = Any


@pytest.fixture
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client() as http:
        yield http


def say(text: str) -> Json:
    return {"role": "user", "content": text}


# -- plain HTTP clients


WIRES: list[tuple[str, str, Json]] = [
    ("openai-chat", "/v1/chat/completions", {"model": "m", "messages": [say("one")]}),
    ("openai-responses", "/v1/responses", {"model": "m", "input": "one"}),
    ("anthropic", "/v1/messages", {"model": "m", "max_tokens": 9, "messages": [say("one")]}),
    ("gemini", "/v1beta/models/m:generateContent", {"contents": [{"role": "user", "parts": [{"text": "one"}]}]}),
]


@pytest.mark.parametrize(("dialect", "path", "body"), WIRES)
@pytest.mark.parametrize("said", [False, True])
def test_a_plain_http_client_is_recorded_on_every_wire(
    dialect: str, path: str, body: Json, said: bool, parrot: Provider, store: Store, http: httpx2.Client
) -> None:
    assert hitherto.record(http, store, title="By hand", dialect=dialect if said else None) is http
    http.post(parrot.url + path, json=body).raise_for_status()
    http.post(parrot.url + "/v1/embeddings", json={"model": "m", "input": "one"})
    http.get(parrot.url + path)
    assert threads(store) == [["one", "a1"]]
    talk = store.latest()
    assert talk is not None
    assert (talk.title, talk.model, (talk.thread()[0].extra or {})["dialect"]) == ("By hand", "m", dialect)
    hitherto.recording(http).close()
    http.post(parrot.url + path, json=body)
    assert store.stats().messages == 2


def test_the_dialect_is_said_where_the_path_does_not_say_it(store: Store, http: httpx2.Client) -> None:
    def answer(asked: Asked) -> Json:
        return chat_answer(f"a{len(server.asked)}")

    body = {"model": "m", "messages": [say("one")]}
    with provider(answer) as server:
        hitherto.record(http, store)
        http.post(server.url + "/llm/invoke", json=body)
        assert store.stats().messages == 0  # the control: nobody knows what it is
        hitherto.record(http, store, dialect="openai-chat")
        http.post(server.url + "/llm/invoke", json=body)
        http.post(server.url + "/llm/status", json={"ready": True})
        http.post(server.url + "/llm/status", content=b"[1]")
        http.post(server.url + "/llm/moderations", json=body)
    assert threads(store) == [["one", "a2"]]


def test_a_stream_over_a_plain_client_is_recorded_in_either_colour(parrot: Provider, store: Store) -> None:
    body = {"model": "m", "messages": [say("one")], "stream": True}
    url = parrot.url + "/v1/chat/completions"

    async def main() -> None:
        async with hitherto.record(httpx2.AsyncClient(), store) as client, client.stream("POST", url, json=body) as got:
            async for _ in got.aiter_lines():
                pass

    asyncio.run(main())
    with hitherto.record(httpx2.Client(), store) as client, client.stream("POST", url, json=body) as response:
        assert b"a2" in response.read()
    assert threads(store) == [["one", "a1"], ["one", "a2"]]


def test_beneath_a_recorded_sdk_client_nothing_is_recorded_twice(
    parrot: Provider, store: Store, http: httpx2.Client
) -> None:
    with hitherto.open("memory:") as other:
        hitherto.record(http, other)
        sdk, unrecorded = (
            opened(openai.OpenAI(base_url=parrot.url + "/v1", api_key="k", http_client=http)) for _ in "ab"
        )
        hitherto.record(sdk, store)
        create(sdk, user("one"))
        assert (store.stats().messages, other.stats().messages) == (2, 0)
        create(unrecorded, user("two"))  # the control: this one is the HTTP client's to keep
        assert (store.stats().messages, other.stats().messages) == (2, 2)
        hitherto.recording(sdk).close()
        create(sdk, user("three"))
        assert (store.stats().messages, other.stats().messages) == (2, 4)


def test_a_redirect_is_one_question(store: Store) -> None:
    def answer(asked: Asked) -> Reply | Json:
        if len(server.asked) == 1:
            return Reply({}, status=307, headers={"location": "/v1/chat/completions"})
        return chat_answer("ok")

    with provider(answer) as server, httpx2.Client(follow_redirects=True) as http:
        hitherto.record(http, store)
        http.post(server.url + "/v0/chat/completions", json={"model": "m", "messages": [say("one")]})
        assert len(server.asked) == 2
    assert threads(store) == [["one", "ok"]]


def test_what_is_said_of_the_dialect_is_checked(parrot: Provider, store: Store, http: httpx2.Client) -> None:
    with pytest.raises(hitherto.InvalidArgument):
        hitherto.record(http, store, dialect="klingon")
    sdk = opened(openai.OpenAI(base_url=parrot.url + "/v1", api_key="k"))
    with pytest.raises(hitherto.InvalidArgument, match="known"):
        hitherto.record(sdk, store, dialect="openai-chat")
    assert not hitherto.recorder.is_recorded(http)
    assert not hitherto.recorder.is_recorded(sdk)


# -- responses that are there from the beginning


def made_up(streamed: bool) -> Callable[[Any], Any]:
    def handler(request: Any) -> Any:
        if not streamed:
            return httpx2.Response(200, json=chat_answer("made up"))
        lines = "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in chat_events("made up"))
        return httpx2.Response(200, text=lines, headers={"content-type": "text/event-stream"})

    return handler


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_a_transport_makes_up_is_kept(streamed: bool, store: Store) -> None:
    http = httpx2.Client(transport=httpx2.MockTransport(made_up(streamed)))
    sdk: Any = opened(openai.OpenAI(base_url="https://h.test/v1", api_key="k", http_client=http))
    hitherto.record(sdk, store)
    done = sdk.chat.completions.create(model="m", messages=[user("one")], stream=streamed)
    if streamed:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in done if chunk.choices) == "made up"
    assert threads(store) == [["one", "made up"]]


def test_the_same_awaited(store: Store) -> None:
    async def main() -> None:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(made_up(False)))
        async with openai.AsyncOpenAI(base_url="https://h.test/v1", api_key="k", http_client=http) as sdk:
            hitherto.record(sdk, store)
            await sdk.chat.completions.create(model="m", messages=[user("one")])

    asyncio.run(main())
    assert threads(store) == [["one", "made up"]]


# -- google-genai over aiohttp


@pytest.mark.parametrize("streamed", [False, True])
def test_google_genai_is_heard_over_aiohttp(streamed: bool, parrot: Provider, store: Store) -> None:
    async def main() -> None:
        client: Any = genai.Client(api_key="k", http_options={"base_url": parrot.url})
        assert client._api_client._use_aiohttp()
        hitherto.record(client, store)
        chat = client.aio.chats.create(model="m")
        for text in ("one", "two"):
            if streamed:
                async for _ in await chat.send_message_stream(text):
                    pass
            else:
                await chat.send_message(text)
        client.models.generate_content(model="m", contents="sync")
        await client.aio.aclose()
        client.close()

    asyncio.run(main())
    assert threads(store) == [["one", "a1", "two", "a2"], ["sync", "a3"]]
    assert all(store.conversation(info.id).partials() == [] for info in store.conversations().items)


def test_a_reader_who_stops_keeps_what_came_over_aiohttp(store: Store) -> None:
    """And a question that aiohttp could not deliver may be asked again."""
    events = gemini_events("one two three four")
    wait = threading.Event()

    def answer(asked: Asked) -> Reply:
        if len(server.asked) == 1:
            return Reply({"error": {"message": "no", "code": 400}}, status=400)
        return Reply(events=[*events[:2], lambda: wait.wait(30) and None, *events[2:]])

    async def main() -> None:
        client: Any = genai.Client(api_key="k", http_options={"base_url": server.url})
        hitherto.record(client, store)
        with pytest.raises(genai.errors.ClientError):
            await client.aio.models.generate_content(model="m", contents="q")
        stream = await client.aio.models.generate_content_stream(model="m", contents="q")
        assert (await anext(stream)).text == "one "
        await stream.aclose()
        wait.set()
        await client.aio.aclose()
        client.close()
        gc.collect()

    with provider(answer) as server:
        asyncio.run(main())
    assert threads(store) == [["q"]]
    talk = store.latest()
    assert talk is not None
    (partial,) = talk.partials()
    assert partial.text.startswith("one ")


# -- calls that cannot be heard


def test_a_call_that_goes_another_way_is_said(parrot: Provider, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Google's SDK has other ways to send, with client certificates, say."""
    client: Any = genai.Client(api_key="k", http_options={"base_url": parrot.url})
    opened(client)
    hitherto.record(client, store)
    client.models.generate_content(model="m", contents="one")
    assert "not kept" not in caplog.text
    _calls._hooked.discard(client._api_client._httpx_client)
    client._api_client._httpx_client.event_hooks = {"request": [], "response": []}
    with caplog.at_level(logging.WARNING, "hitherto"):
        for text in ("two", "three"):
            client.models.generate_content(model="m", contents=text)
    assert caplog.text.count("not kept") == 1
    assert threads(store) == [["one", "a1"]]
