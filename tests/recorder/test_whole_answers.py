"""No answer is lost or mutilated, whatever it holds: cut surrogate pairs, long integers, deep nesting, much text.

Every test speaks real HTTP through the real SDKs to a provider on loopback, both with `record(sdk)` and with our own
clients. Requirements: C3, C12, D12.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import openai
import pytest

import hitherto
from hitherto import Key, Sanitiser, Store
from hitherto.chat import AsyncClient, Client, Config, Tool, new_async_client, new_client
from hitherto.errors import ProviderError

from ..support.provider import (
    Asked,
    Provider,
    Reply,
    anthropic_answer,
    chat_answer,
    gemini_answer,
    provider,
    responses_events,
)
from ..support.thorough import THOROUGH

Json = Any


def own_client(kind: str, server: Provider, **more: Any) -> Client:
    name = "openai" if kind in ("openai-chat", "openai-responses") else kind
    given: dict[str, Any] = {"api": "responses"} if kind == "openai-responses" else {}
    url = server.url + ("/v1" if name == "openai" else "")
    config = Config(name, "m", url, "k", allow_insecure_base_url=True, max_retries=0, **given, **more)
    client = new_client(config)
    assert isinstance(client, Client)
    return client


def kept_texts(store: Store) -> list[str]:
    talk = store.latest()
    assert talk is not None
    return [message.text for message in talk.thread()]


# -- a surrogate pair that a stream cuts in two

PIECES = ["The answer is ", "forty-two \ud83d", "\ude00 and ", "nothing else."]
WHOLE = "The answer is forty-two \U0001f600 and nothing else."


def chat_chunk(delta: Json, reason: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def chat_stream(pieces: list[str]) -> list[Json]:
    return [*(chat_chunk({"role": "assistant", "content": p}) for p in pieces), chat_chunk({}, "stop"), "[DONE]"]


def anthropic_stream(pieces: list[str]) -> list[Json]:
    begun = {**anthropic_answer(""), "content": []}
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}} for piece in pieces
    ]
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *deltas,
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]


def gemini_stream(pieces: list[str]) -> list[Json]:
    chunks: list[Json] = [{"candidates": [{"content": {"role": "model", "parts": [{"text": p}]}}]} for p in pieces]
    chunks[-1]["candidates"][0]["finishReason"] = "STOP"
    return chunks


def responses_stream(pieces: list[str]) -> list[Json]:
    """A server that leaves the last event empty, so that the pieces count."""
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events = responses_events("")
    deltas = [{"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []} for piece in pieces]
    ended = {"type": "response.completed", "response": {**events[-1]["response"], "output": []}}
    return [events[0], *deltas, ended]


STREAMS: dict[str, Callable[[list[str]], list[Json]]] = {
    "claude": anthropic_stream,
    "openai-chat": chat_stream,
    "openai-responses": responses_stream,
    "gemini": gemini_stream,
}


def listen_to_sdk(kind: str, server: Provider, store: Store) -> None:
    """Ask through the SDK of a provider, and read the stream to its end."""
    if kind == "claude":
        with anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as claude:
            hitherto.record(claude, store)
            body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}], "stream": True}
            with claude.post(
                "/v1/messages", body=body, cast_to=object, stream=True, stream_cls=anthropic.Stream[object]
            ) as stream:
                list(stream)
    else:
        path, field = ("/responses", "input") if kind.endswith("responses") else ("/chat/completions", "messages")
        with openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as sdk:
            hitherto.record(sdk, store)
            body = {"model": "m", field: [{"role": "user", "content": "q"}], "stream": True}
            with sdk.post(path, body=body, cast_to=object, stream=True, stream_cls=openai.Stream[object]) as stream:
                list(stream)


@pytest.mark.parametrize("kind", ["claude", "openai-chat", "openai-responses"])
def test_a_pair_that_is_cut_in_two_is_kept_whole(kind: str, store: Store) -> None:
    with provider(lambda _: Reply(events=STREAMS[kind](PIECES))) as server:
        listen_to_sdk(kind, server, store)
    assert kept_texts(store) == ["q", WHOLE]


@pytest.mark.parametrize("kind", STREAMS)
def test_a_client_of_ours_gives_and_keeps_a_cut_pair_whole(kind: str, store: Store) -> None:
    with provider(lambda _: Reply(events=STREAMS[kind](PIECES))) as server, own_client(kind, server) as client:
        hitherto.record(client, store)
        pieces = list(client.stream("q"))
    assert "".join(pieces) == WHOLE == client.answer_text
    for piece in pieces:
        piece.encode()  # no piece has half a pair
    assert kept_texts(store) == ["q", WHOLE]


@pytest.mark.parametrize("kind", ["claude", "openai-chat"])
def test_an_event_that_is_read_as_strict_json_is_lost(kind: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a decoder that refuses half a pair loses its words."""
    monkeypatch.setattr("hitherto.dialects._sse.decode_object", lambda data: msgspec.json.decode(data, type=dict))
    with provider(lambda _: Reply(events=STREAMS[kind](PIECES))) as server:
        listen_to_sdk(kind, server, store)
    assert kept_texts(store) == ["q", "The answer is nothing else."]


@pytest.mark.parametrize("kind", ["claude", "openai-chat", "openai-responses"])
def test_half_a_pair_alone_is_a_replacement_character_to_readers_and_exact_in_raw(kind: str, store: Store) -> None:
    with provider(lambda _: Reply(events=STREAMS[kind](["a \ud83d", " b"]))) as server:
        listen_to_sdk(kind, server, store)
    talk = store.latest()
    assert talk is not None
    message = talk.thread()[-1]
    assert message.text == "a \ufffd b"
    assert isinstance(message.raw, bytes)
    assert b'"a \\ud83d b"' in message.raw
    assert "a \ufffd b" in json.dumps(hitherto.history(talk)[-1], ensure_ascii=False)


# -- what a store cannot hold as it is


def nested(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return value


ODD: dict[str, Json] = {
    "a long integer": 10**21,
    "a long negative integer": -(10**20),
    "150 levels": nested(150),
    "half a pair": "\ud83d",
    "6 MB of text": "y z" * 2_000_000,
    "12 MB of text": "y z" * 4_000_000,
    "many numbers": list(range(10**6 if THOROUGH else 10**5)),
}
SMALL = ("a long integer", "a long negative integer", "150 levels")
LARGE = ("6 MB of text", "12 MB of text", "many numbers")


def call_body(kind: str, value: Json) -> Json:
    """An answer that calls a tool with this value."""
    if kind == "claude":
        call = {"type": "tool_use", "id": "toolu_1", "name": "send", "input": {"v": value}}
        return {**anthropic_answer("-"), "content": [{"type": "text", "text": "t"}, call]}
    if kind == "gemini":
        body = gemini_answer("t")
        body["candidates"][0]["content"]["parts"].append({"functionCall": {"name": "send", "args": {"v": value}}})
        return body
    return chat_answer("t", calls=[("call_1", "send", {"v": value})])


def results(kind: str) -> Json:
    if kind == "claude":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}]}
    if kind == "gemini":
        return {"role": "user", "parts": [{"functionResponse": {"name": "send", "response": {"result": "ok"}}}]}
    return {"role": "tool", "tool_call_id": "call_1", "content": "ok"}


def entry_of(kind: str, body: Json) -> Json:
    if kind == "claude":
        return {"role": "assistant", "content": body["content"]}
    return body["candidates"][0]["content"] if kind == "gemini" else body["choices"][0]["message"]


def post(kind: str, sdk: Any, history: list[Json]) -> None:
    path = "/v1/messages" if kind == "claude" else "/chat/completions"
    sdk.post(path, body={"model": "m", "max_tokens": 9, "messages": history}, cast_to=object)


def sdk_of(kind: str, server: Provider) -> Any:
    if kind == "claude":
        return anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0)
    return openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)


def written(value: Json) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("kind", "what", "sealed"),
    [
        *((kind, what, False) for kind in ("claude", "openai-chat") for what in SMALL),
        *(("claude", what, False) for what in LARGE),
        ("openai-chat", "12 MB of text", False),
        ("claude", "a long integer", True),
        ("claude", "12 MB of text", True),
    ],
)
def test_an_answer_of_any_kind_is_kept_and_the_chat_goes_on(
    kind: str, what: str, tmp_path: Path, *, sealed: bool
) -> None:
    """Recorded through an SDK, read from the file again, resumed by a client of ours, and sent as it was."""
    question: Json = {"role": "user", "content": "q"}
    body = call_body(kind, ODD[what])
    key = Key.generate() if sealed else None
    answers = [Reply(raw=written(body)), Reply(raw=written(entry_answer(kind, "done")))]
    with hitherto.open(str(tmp_path / "c.db"), key=key) as store:
        with provider(lambda _: answers[len(server.asked) - 1]) as server, sdk_of(kind, server) as sdk:
            hitherto.record(sdk, store)
            post(kind, sdk, [question])
            history = [question, entry_of(kind, body), results(kind)]
            post(kind, sdk, history)
        talk = store.latest()
        assert talk is not None
        assert [message.role for message in talk.thread()] == ["user", "assistant", "tool_result", "assistant"]
        assert len(talk.branches()) == 1
        assert store.verify().ok
    with hitherto.open(str(tmp_path / "c.db"), key=key) as store:
        talk = store.latest()
        assert talk is not None
        assert talk.thread()[1].blocks[-1].tool_name == "send"
        with (
            provider(lambda _: entry_answer(kind, "bye")) as server,
            own_client(kind, server) as client,
        ):
            hitherto.resume(client, store, talk)
            client.chat("and now?")
        assert server.bodies[0]["messages"][:3] == history
        assert store.verify().ok


def entry_answer(kind: str, text: str) -> Json:
    return anthropic_answer(text) if kind == "claude" else chat_answer(text)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        *((kind, what) for kind in ("claude", "openai-chat", "gemini") for what in (*SMALL, "half a pair")),
        ("claude", "12 MB of text"),
        ("gemini", "6 MB of text"),
    ],
)
def test_a_client_of_ours_runs_the_tool_keeps_the_answer_and_sends_it_again(kind: str, what: str, store: Store) -> None:
    given: list[Json] = []

    def send(v: Json) -> str:
        given.append(v)
        return "ok"

    def answer(_: Asked) -> Reply:
        if len(server.asked) == 1:
            return Reply(raw=written(call_body(kind, ODD[what])))
        return Reply(gemini_answer("done") if kind == "gemini" else entry_answer(kind, "done"))

    with provider(answer) as server, own_client(kind, server) as client:
        hitherto.record(client, store)
        client.set_tools([Tool("send", "", {"type": "object", "properties": {"v": {}}}, send)])
        assert client.chat("q") == "done"
        if what != "150 levels":  # deeper than a snapshot may be
            client.save()
    assert given == [ODD[what]]
    talk = store.latest()
    assert talk is not None
    assert [message.role for message in talk.thread()] == ["user", "assistant", "tool_result", "assistant"]
    entries = server.bodies[1]["contents" if kind == "gemini" else "messages"]
    sent = entries[1]
    wanted = entry_of(kind, call_body(kind, "\ufffd" if what == "half a pair" else ODD[what]))
    if kind == "openai-chat" and what == "half a pair":
        return  # its arguments are JSON text, in which the half is an escape, and stays one
    assert sent == wanted


def test_without_a_form_that_can_be_kept_the_answer_is_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr("hitherto.recorder._responses.keepable_answer", lambda answer: answer)
    with provider(lambda _: call_body("claude", 10**21)) as server, sdk_of("claude", server) as sdk:
        hitherto.record(sdk, store)
        post("claude", sdk, [{"role": "user", "content": "q"}])
    assert kept_texts(store) == ["q"]


def test_without_bytes_a_large_answer_is_lost(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr("hitherto.recorder._recorder.as_bytes", lambda message: message)
    with provider(lambda _: call_body("claude", ODD["6 MB of text"])) as server, sdk_of("claude", server) as sdk:
        hitherto.record(sdk, store)
        post("claude", sdk, [{"role": "user", "content": "q"}])
    assert kept_texts(store) == ["q"]


def test_a_secret_in_such_an_answer_is_taken_out_all_the_same(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6" * 3
    body = call_body("claude", 10**21)
    body["content"][0]["text"] = f"token {secret}"
    with hitherto.open(str(tmp_path / "c.db"), sanitiser=Sanitiser.secrets()) as store:
        with provider(lambda _: body) as server, sdk_of("claude", server) as sdk:
            hitherto.record(sdk, store)
            post("claude", sdk, [{"role": "user", "content": "q"}])
        talk = store.latest()
        assert talk is not None
        message = talk.thread()[1]
        assert isinstance(message.raw, bytes)
        assert secret.encode() not in message.raw
        assert json.loads(message.raw)["content"][1]["input"] == {"v": 10**21}
    assert secret.encode() not in (tmp_path / "c.db").read_bytes()


def test_a_response_that_cannot_be_taken_apart_is_kept_and_the_chat_goes_on(store: Store) -> None:
    deep = deep_body("claude", 5000)
    answers = [Reply(raw=deep), Reply(anthropic_answer("yes"))]
    with provider(lambda _: answers[len(server.asked) - 1]) as server, sdk_of("claude", server) as sdk:
        hitherto.record(sdk, store)
        question: Json = {"role": "user", "content": "q"}
        with pytest.raises(RecursionError):  # the SDK cannot read it either
            post("claude", sdk, [question])
        kept = next(message for message in store.messages() if message.role == "event")
        assert [(block.type, block.content) for block in kept.blocks] == [("response", deep.decode())]
        post("claude", sdk, [question])
    talk = store.latest()
    assert talk is not None
    assert [message.text for message in talk.thread()] == ["q", "yes"]


def deep_body(kind: str, levels: int) -> bytes:
    """A response whose JSON is nested deeper than it is taken apart."""
    return written(call_body(kind, "@")).replace(b'"@"', b"[" * levels + b"]" * levels)


@pytest.mark.parametrize("again", ["retry", "the same words", "other words", "awaited"])
@pytest.mark.parametrize("kind", ["claude", "gemini"])
@pytest.mark.parametrize("levels", [300, 5000])
def test_a_client_of_ours_keeps_what_it_cannot_take_apart_and_can_ask_again(
    levels: int, kind: str, again: str, store: Store
) -> None:
    deep = deep_body(kind, levels)

    def answer(_: Asked) -> Reply:
        if len(server.asked) == 1:
            return Reply(raw=deep)
        return Reply(gemini_answer("yes") if kind == "gemini" else anthropic_answer("yes"))

    def ask(client: Client) -> None:
        with pytest.raises(ProviderError, match="makes no sense"):
            client.chat("q")
        assert (client.retry() if again == "retry" else client.chat("r" if again == "other words" else "q")) == "yes"

    async def ask_async() -> None:
        config = Config(kind, "m", server.url, "k", allow_insecure_base_url=True, max_retries=0)
        async with new_async_client(config) as client:
            assert isinstance(client, AsyncClient)
            hitherto.record(client, store)
            with pytest.raises(ProviderError, match="makes no sense"):
                await client.chat("q")
            assert await client.retry() == "yes"

    with provider(answer) as server:
        if again == "awaited":
            asyncio.run(ask_async())
        else:
            with own_client(kind, server) as client:
                hitherto.record(client, store)
                ask(client)
    kept = next(message for message in store.messages() if message.role == "event")
    assert [(block.type, block.content) for block in kept.blocks] == [("response", deep.decode())]
    assert kept_texts(store) == (["q", "r", "yes"] if again == "other words" else ["q", "yes"])
    assert len(store.conversations().items) == 1
    if again != "other words":
        assert server.bodies[0] == server.bodies[1]


def test_a_client_of_ours_does_not_take_a_page_of_a_proxy_for_an_answer(store: Store) -> None:
    """The control: bytes that are no JSON object are no answer, and are not kept."""
    pages = [Reply(raw=b"<html>not found</html>"), Reply(raw=deep_body("claude", 300)[:-3])]
    with provider(lambda _: pages[len(server.asked) - 1]) as server, own_client("claude", server) as client:
        hitherto.record(client, store)
        for _ in pages:
            with pytest.raises(ProviderError, match="makes no sense"):
                client.chat("q")
    assert {message.role for message in store.messages()} == {"user"}


def test_a_tool_result_whose_answer_cannot_be_taken_apart_is_an_error_too(store: Store) -> None:
    """An empty answer to a tool's result is none that one has to ask for again; this one is."""
    answers = [Reply(call_body("claude", 1)), Reply(raw=deep_body("claude", 300)), Reply(anthropic_answer("done"))]
    with provider(lambda _: answers[len(server.asked) - 1]) as server, own_client("claude", server) as client:
        hitherto.record(client, store)
        client.set_tools([Tool("send", "", {"type": "object", "properties": {"v": {}}}, lambda v: "ok")])  # noqa: ARG005
        with pytest.raises(ProviderError, match="makes no sense"):
            client.chat("q")
        assert client.retry() == "done"
    assert server.bodies[1] == server.bodies[2]
    assert kept_texts(store) == ["q", "t", "ok", "done"]


def test_a_summary_that_cannot_be_taken_apart_is_none() -> None:
    answers = [Reply(anthropic_answer("yes")), Reply(raw=deep_body("claude", 300))]
    with provider(lambda _: answers[len(server.asked) - 1]) as server, own_client("claude", server) as client:
        client.chat("q")
        with pytest.raises(ProviderError, match="makes no sense"):
            client.compact()
        assert [message.text for message in client.messages] == ["q", "yes"]


def test_an_event_of_a_stream_that_is_no_json_is_kept_with_the_answer(store: Store) -> None:
    events = chat_stream(["a", "b"])
    events.insert(1, "{oops")
    with (
        provider(lambda _: Reply(events=events)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0) as sdk,
    ):
        hitherto.record(sdk, store)
        asked = sdk.chat.completions.with_streaming_response.create(
            model="m", messages=[{"role": "user", "content": "q"}], stream=True
        )
        with asked as response:
            response.read()
    talk = store.latest()
    assert talk is not None
    message = talk.thread()[-1]
    assert (message.text, [block.content for block in message.blocks if block.type == "unread"]) == ("ab", [b"{oops"])


# -- streams that end without a reason


def test_a_stream_that_ends_with_done_is_an_answer_without_a_reason(store: Store) -> None:
    events = [*chat_stream(["a", "b"])[:2], "[DONE]"]
    with provider(lambda _: Reply(events=events)) as server:
        listen_to_sdk("openai-chat", server, store)
    talk = store.latest()
    assert talk is not None
    assert ([message.text for message in talk.thread()], talk.partials()) == (["q", "ab"], [])


@pytest.mark.parametrize("end", [[], [{"error": {"message": "no tool of that name"}}, "[DONE]"]])
def test_a_stream_that_ends_without_done_or_with_an_error_was_cut(end: list[Json], store: Store) -> None:
    """The control."""
    events = [*chat_stream(["a", "b"])[:2], *end]
    with provider(lambda _: Reply(events=events)) as server, contextlib.suppress(openai.APIError):
        listen_to_sdk("openai-chat", server, store)
    talk = store.latest()
    assert talk is not None
    assert ([message.text for message in talk.thread()], len(talk.partials())) == (["q"], 1)


def test_a_client_of_ours_takes_done_for_the_end_too() -> None:
    events = [*chat_stream(["a", "[DONE]"])[:2], "[DONE]"]
    with provider(lambda _: Reply(events=events)) as server:
        with own_client("openai-chat", server) as client:
            assert "".join(client.stream("q")) == "a[DONE]"

        async def ask() -> str:
            config = Config("openai", "m", server.url + "/v1", "k", allow_insecure_base_url=True, max_retries=0)
            async with new_async_client(config) as client:
                return "".join([piece async for piece in client.stream("q")])

        assert asyncio.run(ask()) == "a[DONE]"
    with (
        provider(lambda _: Reply(events=events[:-1])) as server,
        own_client("openai-chat", server) as client,
        pytest.raises(ProviderError, match="cut off"),
    ):
        list(client.stream("q"))


# -- answers without a word


def empty_answer(kind: str) -> Json:
    if kind == "claude":
        return {**anthropic_answer("-"), "content": []}
    body = gemini_answer("-")
    body["candidates"][0] = {"content": {"role": "model"}, "finishReason": "MAX_TOKENS", "index": 0}
    return body


@pytest.mark.parametrize("kind", ["claude", "gemini"])
def test_an_answer_without_a_word_is_kept_with_its_usage_and_can_be_asked_for_again(kind: str, store: Store) -> None:
    def answer(_: Asked) -> Json:
        if len(server.asked) == 1:
            return empty_answer(kind)
        return anthropic_answer("now") if kind == "claude" else gemini_answer("now")

    with provider(answer) as server, own_client(kind, server) as client:
        hitherto.record(client, store)
        with pytest.raises(ProviderError, match="without a word"):
            client.chat("q")
        assert client.retry() == "now"
    assert server.bodies[0] == server.bodies[1]
    talk = store.latest()
    assert talk is not None
    assert [(message.role, message.text) for message in talk.thread()] == [
        ("user", "q"),
        ("assistant", ""),
        ("assistant", "now"),
    ]
    assert talk.usage().input_tokens == 10
