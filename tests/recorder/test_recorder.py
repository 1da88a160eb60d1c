"""Recording what goes through the official SDKs: the same objects, the same calls, everything kept.

Every test speaks real HTTP to a provider on loopback. Requirements: C10, C12, C18, A11, D4, and "Recorder" of the chat.
"""

import asyncio
import base64
import contextlib
import gzip
import json
import logging
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from google import genai

import hitherto
from hitherto import Message, Store
from hitherto.backend import Batch, Outcome
from hitherto.chat import Client, Config, Tool, new_client
from hitherto.dialects import dialect
from hitherto.errors import StorageFull

from ..support.provider import (
    Asked,
    Cut,
    Provider,
    Reply,
    anthropic_answer,
    anthropic_events,
    chat_answer,
    chat_events,
    gemini_answer,
    gemini_events,
    provider,
    responses_answer,
    responses_events,
    responses_text,
)

Json = Any


def speak(asked: Asked, text: str) -> Reply | Json:
    """The answer that the endpoint that was asked would give."""
    streamed = asked.body.get("stream") or ":streamGenerateContent" in asked.path
    answers: list[tuple[str, Callable[[str], Json], Callable[[str], Json]]] = [
        ("/chat/completions", chat_answer, chat_events),
        (
            "/responses",
            lambda t: responses_answer([responses_text(t)], f"resp_{t}"),
            lambda t: responses_events(t, f"resp_{t}"),
        ),
        ("/v1/messages", anthropic_answer, anthropic_events),
        ("enerateContent", gemini_answer, gemini_events),
    ]
    for end, whole, events in answers:
        if asked.path.split("?")[0].endswith(end):
            return Reply(events=events(text)) if streamed else whole(text)
    return Reply({"error": {"message": "no such path"}}, status=404)


def texts(store: Store) -> list[tuple[str, str]]:
    talk = store.latest()
    assert talk is not None
    return [(message.role, message.text) for message in talk.thread()]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def assistant(text: str) -> Json:
    return {"role": "assistant", "content": text}


# -- how each SDK says a question, in each of its ways, and what the next history is then


_opened: list[Callable[[], None]] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Nothing is left open."""
    yield
    while _opened:
        _opened.pop()()


def openai_at(server: Provider, **more: Any) -> Any:
    sdk = openai.OpenAI(base_url=server.url + "/v1", api_key="k", **more)
    _opened.append(sdk.close)
    return sdk


class Talker:
    """A program that talks through an SDK and sends the whole history each time."""

    def __init__(self, server: Provider, store: Store, **about: Any) -> None:
        self.store = store
        self.server = server
        self.about = about
        self.sdk: Any = None
        self.loop: asyncio.AbstractEventLoop | None = None
        _opened.append(self.close)

    def close(self) -> None:
        self.sdk.close()
        if self.loop is not None:
            self.loop.run_until_complete(self.sdk.aio.aclose())
            self.loop.close()

    def record(self, sdk: Any) -> Any:
        recorded = hitherto.record(sdk, self.store, **self.about)
        assert recorded is sdk  # the very object
        self.sdk = sdk
        return sdk

    def say(self, text: str) -> str:
        raise NotImplementedError


class OpenAIChat(Talker):
    provider = "openai"

    def __init__(self, server: Provider, store: Store, **about: Any) -> None:
        super().__init__(server, store, **about)
        self.record(openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0))
        self.history: list[Json] = []

    def say(self, text: str) -> str:
        self.history.append(user(text))
        sent = [{"role": "system", "content": "Be terse."}, *self.history]
        answer = self.sdk.chat.completions.create(model="m", messages=sent).choices[0].message.content
        self.history.append(assistant(answer))
        return str(answer)


class OpenAIChatStreamed(OpenAIChat):
    def say(self, text: str) -> str:
        self.history.append(user(text))
        sent = [{"role": "system", "content": "Be terse."}, *self.history]
        stream = self.sdk.chat.completions.create(
            model="m", messages=sent, stream=True, stream_options={"include_usage": True}
        )
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        self.history.append(assistant(answer))
        return answer


class OpenAIChatHelper(OpenAIChat):
    """The SDK's own context manager for streams."""

    def say(self, text: str) -> str:
        self.history.append(user(text))
        sent = [{"role": "system", "content": "Be terse."}, *self.history]
        with self.sdk.chat.completions.stream(
            model="m", messages=sent, stream_options={"include_usage": True}
        ) as stream:
            message = stream.get_final_completion().choices[0].message
        self.history.append(message.to_dict(mode="json"))
        return str(message.content)


class OpenAIChatAsync(OpenAIChat):
    def say(self, text: str) -> str:
        return asyncio.run(self._say(text))

    async def _say(self, text: str) -> str:
        self.history.append(user(text))
        sdk: Any = openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="k")
        async with hitherto.record(sdk, self.store, **self.about):
            sent = [{"role": "system", "content": "Be terse."}, *self.history]
            if len(self.history) == 1:
                done = await sdk.chat.completions.create(model="m", messages=sent)
                answer = done.choices[0].message.content or ""
            else:
                options = {"include_usage": True}
                stream = await sdk.chat.completions.create(
                    model="m", messages=sent, stream=True, stream_options=options
                )
                answer = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        self.history.append(assistant(answer))
        return answer


class OpenAIResponses(OpenAIChat):
    def say(self, text: str) -> str:
        self.history.append(user(text))
        done = self.sdk.responses.create(model="m", instructions="Be terse.", input=self.history)
        self.history += [item.to_dict(mode="json") for item in done.output]
        return str(done.output_text)


class OpenAIResponsesStreamed(OpenAIChat):
    def say(self, text: str) -> str:
        self.history.append(user(text))
        stream = self.sdk.responses.create(model="m", instructions="Be terse.", input=self.history, stream=True)
        last = list(stream)[-1].response
        self.history += [item.to_dict(mode="json") for item in last.output]
        return str(last.output_text)


class OpenAIResponsesChained(OpenAIChat):
    """The provider keeps the history: only what is new is sent."""

    last: str | None = None

    def say(self, text: str) -> str:
        more = {} if self.last is None else {"previous_response_id": self.last}
        done = self.sdk.responses.create(model="m", instructions="Be terse.", input=text, **more)
        self.last = done.id
        return str(done.output_text)


class Anthropic(Talker):
    provider = "claude"

    def __init__(self, server: Provider, store: Store, **about: Any) -> None:
        super().__init__(server, store, **about)
        self.record(anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0))
        self.history: list[Json] = []

    def say(self, text: str) -> str:
        self.history.append(user(text))
        done = self.sdk.messages.create(model="m", max_tokens=9, system="Be terse.", messages=self.history)
        self.history.append({"role": "assistant", "content": done.content})  # the SDK's own objects
        return str(done.content[0].text)


class AnthropicStreamed(Anthropic):
    def say(self, text: str) -> str:
        self.history.append(user(text))
        with self.sdk.messages.stream(model="m", max_tokens=9, system="Be terse.", messages=self.history) as stream:
            answer = "".join(stream.text_stream)
        self.history.append(assistant(answer))
        return answer


class AnthropicAsync(Anthropic):
    def say(self, text: str) -> str:
        return asyncio.run(self._say(text))

    async def _say(self, text: str) -> str:
        self.history.append(user(text))
        sdk = anthropic.AsyncAnthropic(base_url=self.server.url, api_key="k")
        async with (
            hitherto.record(sdk, self.store, **self.about),
            sdk.messages.stream(model="m", max_tokens=9, system="Be terse.", messages=self.history) as stream,
        ):
            answer = "".join([piece async for piece in stream.text_stream])
        self.history.append(assistant(answer))
        return answer


class Gemini(Talker):
    provider = "gemini"

    def __init__(self, server: Provider, store: Store, **about: Any) -> None:
        super().__init__(server, store, **about)
        self.record(self.client(server))
        self.chat = self.sdk.chats.create(model="m", config={"system_instruction": "Be terse."})

    def say(self, text: str) -> str:
        return str(self.chat.send_message(text).text)

    def client(self, server: Provider) -> Any:
        options: Any = {"base_url": server.url}
        return genai.Client(api_key="k", http_options=options)


class GeminiStreamed(Gemini):
    """The SDK keeps a streamed answer as it came, in many entries."""

    def say(self, text: str) -> str:
        return "".join(chunk.text or "" for chunk in self.chat.send_message_stream(text))


class GeminiAsync(Gemini):
    """Over aiohttp, which is what this SDK takes where it is installed."""

    def __init__(self, server: Provider, store: Store, **about: Any) -> None:
        super().__init__(server, store, **about)
        self.loop = asyncio.new_event_loop()
        self.chat = self.sdk.aio.chats.create(model="m", config={"system_instruction": "Be terse."})

    def say(self, text: str) -> str:
        assert self.loop is not None
        return str(self.loop.run_until_complete(self.chat.send_message(text)).text)


class GeminiAsyncHttpx(GeminiAsync):
    def client(self, server: Provider) -> Any:
        options: Any = {"base_url": server.url, "httpx_async_client": httpx2.AsyncClient()}
        return genai.Client(api_key="k", http_options=options)

    def close(self) -> None:
        assert self.loop is not None
        self.loop.run_until_complete(self.sdk._api_client._async_httpx_client.aclose())
        super().close()


TALKERS = [
    OpenAIChat,
    OpenAIChatStreamed,
    OpenAIChatHelper,
    OpenAIChatAsync,
    OpenAIResponses,
    OpenAIResponsesStreamed,
    OpenAIResponsesChained,
    Anthropic,
    AnthropicStreamed,
    AnthropicAsync,
    Gemini,
    GeminiStreamed,
    GeminiAsync,
    GeminiAsyncHttpx,
]


@pytest.mark.parametrize("kind", TALKERS)
def test_a_chat_through_an_sdk_is_kept_whole_and_without_duplicates(
    kind: type[Talker], parrot: Provider, store: Store
) -> None:
    """C10. The negative control is the count: whoever keeps whole requests keeps 1 + 3 + 5 messages and more."""
    talker = kind(parrot, store, title="Build", metadata={"team": "a"})
    said: list[tuple[str, str]] = []
    for n in range(4):
        answer = talker.say(f"q{n}")
        assert answer == f"a{n + 1}"
        said += [("user", f"q{n}"), ("assistant", answer)]
        assert texts(store) == said
    talk = store.latest()
    assert talk is not None
    assert (talk.title, talk.metadata) == ("Build", {"team": "a"})
    assert len(list(store.messages())) == len(said)
    assert [conversation.id for conversation in store.conversations().items] == [talk.id]
    assert (talk.provider, talk.model, talk.system_prompt) == (talker.provider, "m", "Be terse.")  # type: ignore[attr-defined]
    usages = [m.usage for m in talk.thread() if m.role == "assistant"]
    assert all(usage is not None and (usage.input_tokens, usage.output_tokens) == (5, 2) for usage in usages)
    assert talk.partials() == []
    assert store.verify().ok


@pytest.mark.parametrize("kind", [OpenAIChat, OpenAIResponses, Anthropic, Gemini])
def test_what_is_kept_is_what_the_next_request_carries(kind: type[Talker], parrot: Provider, store: Store) -> None:
    """The raws of a thread are its request history."""
    talker = kind(parrot, store)
    talker.say("one")
    talker.say("two")
    talker.say("three")
    talk = store.latest()
    assert talk is not None
    sent = parrot.bodies[-1]
    entries = sent.get("messages") or sent.get("input") or sent.get("contents")
    spoken = dialect(str((talk.thread()[0].extra or {})["dialect"]))
    wanted = [spoken.likeness(raw) for raw in entries if raw.get("role") != "system"]
    assert [spoken.likeness(raw) for raw in hitherto.history(talk, system_prompt=False)[:-1]] == wanted
    assert hitherto.history(talk, system_prompt=False) == [message.raw for message in talk.thread()]


def test_the_question_is_kept_before_the_model_is_asked(store: Store) -> None:
    """C10."""
    seen: list[list[tuple[str, str]]] = []

    def answer(asked: Asked) -> Json:
        seen.append(texts(store))
        return chat_answer("ok")

    with provider(answer) as server:
        OpenAIChat(server, store).say("Are you there?")
    assert seen == [[("user", "Are you there?")]]


def test_an_edited_history_becomes_a_branch(parrot: Provider, store: Store) -> None:
    talker = OpenAIChat(parrot, store)
    for question in ("one", "two", "three"):
        talker.say(question)
    talker.history = [*talker.history[:2], user("another two")]
    talker.history.pop()
    talker.say("another two")
    talk = store.latest()
    assert talk is not None
    assert texts(store) == [("user", "one"), ("assistant", "a1"), ("user", "another two"), ("assistant", "a4")]
    assert len(talk.branches()) == 2
    assert len(list(store.messages())) == 8
    # And the branch that was left can be gone on with as well.
    talker.history = [user("one"), assistant("a1"), user("two"), assistant("a2"), user("three"), assistant("a3")]
    talker.say("four")
    assert [text for _, text in texts(store)] == ["one", "a1", "two", "a2", "three", "a3", "four", "a5"]
    assert len(talk.branches()) == 2


def test_an_edited_first_message_is_a_branch_too_if_its_answers_are_known(parrot: Provider, store: Store) -> None:
    talker = OpenAIChat(parrot, store)
    talker.say("one")
    talker.say("two")
    talker.history[0] = user("One, but better.")
    talker.say("three")
    assert len(store.conversations().items) == 1
    assert [text for _, text in texts(store)] == ["One, but better.", "a1", "two", "a2", "three", "a3"]


def test_a_window_that_slides_over_the_history_adds_only_what_is_new(parrot: Provider, store: Store) -> None:
    """Many send the last so many messages. The control is the count: each window kept anew would be 6 messages."""
    talker = OpenAIChat(parrot, store)
    for n in range(10):
        talker.history = talker.history[-4:]
        talker.say(f"q{n}")
    assert [text for _, text in texts(store)] == [text for n in range(10) for text in (f"q{n}", f"a{n + 1}")]
    assert len(list(store.messages())) == 20
    talk = store.latest()
    assert talk is not None
    assert len(talk.branches()) == 1


def test_another_chat_is_another_conversation(parrot: Provider, store: Store) -> None:
    talker = OpenAIChat(parrot, store, title="Build")
    talker.say("one")
    first, talker.history = talker.history, []
    talker.say("something else")
    assert len(store.conversations().items) == 2
    talker.history = first
    talker.say("two")  # and the first one is gone on with
    assert [text for _, text in texts(store)] == ["one", "a1", "two", "a3"]
    assert len(store.conversations().items) == 2


def test_a_given_conversation_takes_everything(parrot: Provider, store: Store) -> None:
    talk = store.start(title="Mine")
    talker = OpenAIChat(parrot, store, conversation=talk)
    talker.say("one")
    talker.history = []
    talker.say("two")
    assert [conversation.id for conversation in store.conversations().items] == [talk.id]
    assert len(store.conversation(talk.id).branches()) == 2


def test_one_client_talks_for_many_people(parrot: Provider, store: Store) -> None:
    """`into` says whose conversation it is, also when two people begin with the same words."""
    sdk = hitherto.record(openai_at(parrot), store)
    for name in ("ann", "bob", "ann"):
        with hitherto.into(store.ensure(name)) as talk:
            sdk.chat.completions.create(model="m", messages=[*hitherto.history(talk), user("Hello")])
    assert [m.text for m in store.ensure("ann").thread()] == ["Hello", "a1", "Hello", "a3"]
    assert [m.text for m in store.ensure("bob").thread()] == ["Hello", "a2"]


def test_tasks_of_one_loop_talk_each_into_their_own(parrot: Provider, store: Store) -> None:
    async def talk(sdk: Any, name: str) -> None:
        with hitherto.into(store.ensure(name)):
            for n in range(3):
                sent = [*hitherto.history(store.ensure(name)), user(f"{name} {n}")]
                await sdk.chat.completions.create(model="m", messages=sent)

    async def main() -> None:
        async with hitherto.record(openai.AsyncOpenAI(base_url=parrot.url + "/v1", api_key="k"), store) as sdk:
            await asyncio.gather(*(talk(sdk, name) for name in "abcdefgh"))

    asyncio.run(main())
    for name in "abcdefgh":
        said = [m.text for m in store.ensure(name).thread() if m.role == "user"]
        assert said == [f"{name} {n}" for n in range(3)]


def test_a_later_process_goes_on_with_what_an_earlier_one_kept(parrot: Provider, tmp_path: Any) -> None:
    """Whole histories are found again in the store, sealed or not, by what their first message is like."""
    for key in (None, hitherto.Key.generate()):
        path = tmp_path / f"{key is None}.db"
        history: list[Json] = []
        for n in range(3):
            with hitherto.open(path, key=key) as store:
                talker = OpenAIChat(parrot, store)
                talker.history = history
                talker.say(f"q{n}")
                history = talker.history
                assert len(store.conversations().items) == 1
                assert len(list(store.messages())) == 2 * n + 2
        with hitherto.open(path, key=key) as store:  # the control: a chat that only begins alike is another one
            OpenAIChat(parrot, store).say("q0")
            assert len(store.conversations().items) == 2
            assert store.verify().ok


def test_a_conversation_is_found_again_after_it_was_reencrypted(parrot: Provider, tmp_path: Any) -> None:
    path, key, other = tmp_path / "s.db", hitherto.Key.generate(), hitherto.Key.generate()
    with hitherto.open(path, key=key) as store:
        talker = OpenAIChat(parrot, store)
        talker.say("one")
        store.rotate(other, reencrypt=True)
    with hitherto.open(path, key=other) as store:
        again = OpenAIChat(parrot, store)
        again.history = talker.history
        again.say("two")
        assert len(store.conversations().items) == 1
        assert store.verify().ok


def test_what_others_write_meanwhile_is_seen(parrot: Provider, store: Store) -> None:
    """Two recorders on one store, in turns, as two workers of one web server are."""
    one, two = OpenAIChat(parrot, store), OpenAIChat(parrot, store)
    one.say("q1")
    two.history = one.history
    two.say("q2")
    one.history = two.history
    one.say("q3")
    assert [text for _, text in texts(store)] == ["q1", "a1", "q2", "a2", "q3", "a3"]
    assert len(list(store.messages())) == 6


def test_a_message_that_was_deleted_is_not_taken_for_known(parrot: Provider, store: Store) -> None:
    talker = OpenAIChat(parrot, store)
    talker.say("one")
    talker.say("two")
    talk = store.latest()
    assert talk is not None
    store.delete([talk.thread()[2]], recursive=True)
    talker.say("three")
    assert [text for _, text in texts(store)] == ["one", "a1", "two", "a2", "three", "a3"]
    assert len(list(store.messages())) == 6


def test_a_changed_prompt_model_or_tool_is_seen_in_the_history(parrot: Provider, store: Store) -> None:
    """Setup: what was in force is kept per message."""
    sdk = hitherto.record(openai_at(parrot), store)
    tool: Json = {
        "type": "function",
        "function": {"name": "look", "description": "d", "parameters": {"type": "object"}},
    }
    history: list[Json] = [user("q1")]
    for prompt, model, tools in (("A", "m1", []), ("A", "m1", []), ("B", "m1", []), ("B", "m2", [tool])):
        more = {"tools": tools} if tools else {}
        done = sdk.chat.completions.create(
            model=model, messages=[{"role": "system", "content": prompt}, *history], **more
        )
        history += [assistant(done.choices[0].message.content or ""), user("more")]
    talk = store.latest()
    assert talk is not None
    found = [(change.setup.system_prompt, change.setup.model, len(change.setup.tools)) for change in talk.setups()]
    assert found == [("A", "m1", 0), ("B", "m1", 0), ("B", "m2", 1)]
    first = talk.thread()[0]
    assert talk.fork(at=first).setup.system_prompt == "A"
    assert talk.setup.tools == (tool,)


def test_several_choices_are_kept_as_branches(store: Store) -> None:
    def answer(asked: Asked) -> Json:
        whole = chat_answer("first")
        whole["choices"].append({**whole["choices"][0], "index": 1, "message": assistant("second")})
        return whole

    with provider(answer) as server:
        talker = OpenAIChat(server, store)
        talker.say("one")
        assert texts(store) == [("user", "one"), ("assistant", "first")]
        talk = store.latest()
        assert talk is not None
        assert len(talk.branches()) == 2
        talker.history[-1] = assistant("second")  # the user likes the other one better
        talker.say("two")
    assert [text for _, text in texts(store)] == ["one", "second", "two", "first"]


def test_calls_that_are_no_chat_pass_unheard(store: Store) -> None:
    def answer(asked: Asked) -> Json:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1, "total_tokens": 1}}

    with provider(answer) as server:
        sdk = hitherto.record(openai_at(server), store)
        sdk.embeddings.create(model="m", input="text", encoding_format="float")
        assert "identity" not in server.asked[0].headers.get("accept-encoding", "")
    assert store.stats().conversations == 0


def test_raw_responses_and_copies_of_a_client_are_recorded_too(parrot: Provider, store: Store) -> None:
    sdk = hitherto.record(openai_at(parrot), store)
    assert type(sdk) is openai.OpenAI
    raw = sdk.chat.completions.with_raw_response.create(model="m", messages=[user("one")])
    assert raw.parse().choices[0].message.content == "a1"
    sdk.with_options(timeout=5).chat.completions.create(model="m", messages=[user("one"), assistant("a1"), user("two")])
    assert [text for _, text in texts(store)] == ["one", "a1", "two", "a2"]


def test_an_answer_that_is_packed_is_read_all_the_same(store: Store) -> None:
    """Servers may pack what they were asked not to."""

    def answer(asked: Asked) -> Reply:
        if asked.body.get("stream"):
            lines = "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in chat_events("streamed"))
            headers = {"content-encoding": "gzip", "content-type": "text/event-stream"}
            return Reply(raw=gzip.compress(lines.encode()), headers=headers)
        return Reply(raw=gzip.compress(json.dumps(chat_answer("whole")).encode()), headers={"content-encoding": "gzip"})

    with provider(answer) as server:
        OpenAIChat(server, store).say("one")
        assert texts(store) == [("user", "one"), ("assistant", "whole")]
        OpenAIChatStreamed(server, store).say("two")
        assert texts(store) == [("user", "two"), ("assistant", "streamed")]


def test_recording_again_takes_over(parrot: Provider, store: Store) -> None:
    with hitherto.open("memory:") as other:
        talker = OpenAIChat(parrot, store)
        talker.say("one")
        hitherto.record(talker.sdk, other)
        talker.history = []
        talker.say("two")
        assert texts(other) == [("user", "two"), ("assistant", "a2")]
    assert texts(store) == [("user", "one"), ("assistant", "a1")]


def test_what_is_recorded_can_be_asked_for(parrot: Provider, store: Store) -> None:
    talker = OpenAIChat(parrot, store)
    recording = hitherto.recording(talker.sdk)
    assert recording is not None
    before = recording.conversation
    assert before is None
    talker.say("one")
    talk = recording.conversation
    assert talk is not None
    assert [m.text for m in talk.thread()] == ["one", "a1"]
    assert recording.pending == 0
    assert not hitherto.recorder.is_recorded(openai_at(parrot))
    with pytest.raises(hitherto.InvalidArgument, match="not recorded"):
        hitherto.recording(openai_at(parrot))


@pytest.mark.parametrize("thing", [None, 5, "openai", object(), openai])
def test_what_cannot_be_recorded_is_refused(thing: object, store: Store) -> None:
    with pytest.raises(hitherto.InvalidArgument, match="recorded"):
        hitherto.record(thing, store)


def test_a_store_that_is_none_is_refused(parrot: Provider) -> None:
    with pytest.raises(hitherto.InvalidArgument, match="store"):
        hitherto.record(openai_at(parrot), "chats.db")  # type: ignore[arg-type]


# -- errors of the provider


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_an_error_of_the_provider_leaves_the_question(status: int, store: Store) -> None:
    wrong = True

    def answer(asked: Asked) -> Reply | Json:
        return Reply({"error": {"message": "no", "type": "t"}}, status=status) if wrong else speak(asked, "yes")

    with provider(answer) as server:
        for kind, error in ((OpenAIChat, openai.APIStatusError), (Anthropic, anthropic.APIStatusError)):
            wrong = True
            talker = kind(server, store)
            with pytest.raises(error):
                talker.say("one")
            assert texts(store) == [("user", "one")]
            wrong = False
            talker.history = []
            talker.say("one")  # the same question again is not another one
            assert texts(store) == [("user", "one"), ("assistant", "yes")]
            assert len(list(store.messages())) % 2 == 0


def test_retries_of_the_sdk_keep_one_question(store: Store) -> None:
    with provider(lambda _: Reply({"error": {}}, status=500) if len(server.asked) < 3 else chat_answer("ok")) as server:
        sdk = openai_at(server, max_retries=3)
        hitherto.record(sdk, store).chat.completions.create(model="m", messages=[user("one")])
        assert len(server.asked) == 3
    assert texts(store) == [("user", "one"), ("assistant", "ok")]
    assert len(list(store.messages())) == 2


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"choices": 5}', b'{"object": "surprise"}'])
def test_nonsense_from_the_provider_disturbs_nobody(raw: bytes, store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """The SDK may handle it in any way. The question has to be kept, and the next turn has to work."""
    replies = [Reply(raw=raw), Reply(chat_answer("ok"))]
    with provider(lambda _: replies[min(len(server.asked), 2) - 1]) as server:
        sdk = hitherto.record(openai_at(server, max_retries=0), store)
        with contextlib.suppress(openai.OpenAIError, ValueError, AttributeError, TypeError):
            sdk.chat.completions.create(model="m", messages=[user("one")])
        sdk.chat.completions.create(model="m", messages=[user("one")])
    assert texts(store)[-1] == ("assistant", "ok")
    assert store.verify().ok


# -- streams that end too soon


def unfinished(text: str, *, cut: bool) -> list[Any]:
    def stop() -> None:
        if cut:
            raise Cut

    return [*chat_events(text)[:4], stop]


@pytest.mark.parametrize("cut", [True, False])
def test_a_stream_that_breaks_leaves_what_came_beside_the_tree(cut: bool, store: Store) -> None:
    """D4. The part that came is offered, and is no message."""
    with provider(lambda _: Reply(events=unfinished("never to be finished", cut=cut))) as server:
        sdk = hitherto.record(openai_at(server, max_retries=0), store)
        stream = sdk.chat.completions.create(model="m", messages=[user("one")], stream=True)
        with pytest.raises(openai.APIError) if cut else contextlib.nullcontext():
            list(stream)
    talk = store.latest()
    assert talk is not None
    assert texts(store) == [("user", "one")]
    (partial,) = talk.partials()
    assert (partial.text, partial.parent) == ("never to be ", talk.at)
    (accepted,) = talk.accept(partial)
    assert accepted.extra is not None
    assert accepted.extra["interrupted"] is True
    assert (accepted.text, talk.partials()) == ("never to be ", [])
    assert hitherto.history(talk) == [user("one"), {"role": "assistant", "content": "never to be "}]


def test_who_stops_reading_keeps_what_came(parrot: Provider, store: Store) -> None:
    with provider(lambda _: Reply(events=chat_events("one two three four five"))) as server:
        sdk = hitherto.record(openai_at(server), store)
        with sdk.chat.completions.create(model="m", messages=[user("q")], stream=True) as stream:
            for chunk in stream:
                if "two" in (chunk.choices[0].delta.content or ""):
                    break
    talk = store.latest()
    assert talk is not None
    assert [m.role for m in talk.thread()] == ["user"] or talk.thread()[-1].text == "one two three four five"
    assert talk.partials() or len(talk.thread()) == 2  # all of it may have been in the buffer already


def test_a_partial_is_kept_while_the_answer_is_still_coming(store: Store) -> None:
    """D4: within 2 s, also if the stream stalls. Nothing sleeps: the provider waits until the part is kept."""
    kept: list[str] = []

    def wait() -> None:
        talk = store.latest()
        assert talk is not None
        for _ in range(2000):
            kept[:] = [partial.text for partial in talk.partials()]
            if kept == ["half and "]:  # a busy machine may keep a shorter part first
                return
            threading.Event().wait(0.01)

    with provider(
        lambda _: Reply(events=[*chat_events("half and half")[:3], wait, *chat_events("half and half")[3:]])
    ) as server:
        sdk = hitherto.record(openai_at(server), store, partial_seconds=0.05)
        list(sdk.chat.completions.create(model="m", messages=[user("q")], stream=True))
    assert kept == ["half and "]
    talk = store.latest()
    assert talk is not None
    assert talk.partials() == []  # the commit that added the answer removed it
    assert texts(store) == [("user", "q"), ("assistant", "half and half")]


def test_a_partial_of_a_deleted_question_is_gone_with_it(store: Store) -> None:
    with provider(lambda _: Reply(events=unfinished("so far so good", cut=True))) as server:
        sdk = hitherto.record(openai_at(server, max_retries=0), store)
        with pytest.raises(openai.APIError):
            list(sdk.chat.completions.create(model="m", messages=[user("q")], stream=True))
    talk = store.latest()
    assert talk is not None
    assert len(talk.partials()) == 1
    store.delete([talk.at or ""])
    assert talk.partials() == []
    assert store.verify().ok


# -- errors of the store


class Full:
    """A backend whose disk is full as long as one says so."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        commit = store.backend.commit

        def checked(batches: Any) -> Any:
            if self.full:
                raise StorageFull("no space is left")
            return commit(batches)

        monkeypatch.setattr(store.backend, "commit", checked)


@pytest.mark.parametrize("kind", [OpenAIChat, Anthropic, Gemini])
def test_if_the_question_cannot_be_kept_the_model_is_not_asked(
    kind: type[Talker], parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10. The error is the store's own, whatever the SDK makes of errors while it sends."""
    disk = Full(store, monkeypatch)
    talker = kind(parrot, store)
    disk.full = True
    with pytest.raises(StorageFull):
        talker.say("one")
    assert parrot.asked == []
    disk.full = False
    if hasattr(talker, "history"):
        talker.history = []
    talker.say("one")
    assert texts(store) == [("user", "one"), ("assistant", "a1")]


def test_the_same_awaited(parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Full(store, monkeypatch)
    disk.full = True
    for kind in (OpenAIChatAsync, AnthropicAsync):
        with pytest.raises(StorageFull):
            kind(parrot, store).say("one")
    assert parrot.asked == []


def test_an_answer_that_cannot_be_kept_is_held_and_kept_later(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller has paid for it, and gets it. The next question is refused until the answer is kept."""
    disk = Full(store, monkeypatch)

    def answer(asked: Asked) -> Json:
        disk.full = len(server.asked) == 1
        return chat_answer(f"a{len(server.asked)}")

    with provider(answer) as server, caplog.at_level(logging.WARNING, "hitherto"):
        talker = OpenAIChat(server, store)
        assert talker.say("one") == "a1"
        assert "held" in caplog.text
        assert texts(store) == [("user", "one")]
        recording = hitherto.recording(talker.sdk)
        assert recording is not None
        assert recording.pending == 1
        with pytest.raises(StorageFull):
            recording.flush()
        with pytest.raises(StorageFull):
            talker.say("two")
        assert len(server.asked) == 1
        talker.history.pop()
        disk.full = False
        talker.say("two")
    assert [text for _, text in texts(store)] == ["one", "a1", "two", "a2"]
    assert recording.pending == 0


@pytest.mark.parametrize("still", [False, True])
def test_what_is_held_is_written_when_the_store_is_closed_or_said_to_be_lost(
    still: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """D11."""
    store = hitherto.open(tmp_path / "c.db")
    disk = Full(store, monkeypatch)

    def answer(asked: Asked) -> Json:
        disk.full = True
        return chat_answer("paid for")

    with provider(answer) as server:
        assert OpenAIChat(server, store).say("one") == "paid for"
    disk.full = still
    store.close()
    assert ("is lost" in caplog.text) == still
    with hitherto.open(tmp_path / "c.db") as store:
        assert [text for _, text in texts(store)] == (["one"] if still else ["one", "paid for"])


def test_a_sub_agent_may_be_an_sdk_client(parrot: Provider, store: Store) -> None:
    """C12."""

    def research() -> str:
        agent = hitherto.record(openai_at(parrot), store, subagent="researcher", run_id="r1")
        history = [user("go")]
        for _ in range(2):
            done = agent.chat.completions.create(model="m", messages=history)
            history += [assistant(done.choices[0].message.content), user("more")]
        return "found"

    with provider(lambda _: replies.pop(0)) as server:
        replies = [chat_answer(None, calls=[("c1", "research", {})]), chat_answer("done")]
        config = Config("openai-compatible", "m", server.url + "/v1", "k", allow_insecure_base_url=True)
        client = new_client(config)
        assert isinstance(client, Client)
        with client:
            client.set_tools([Tool("research", handler=research)])
            hitherto.record(client, store).chat("go")
    assert [text for _, text in texts(store)] == ["go", "", "found", "done"]
    trace = list(store.messages(label="subagent:researcher:r1", newest_first=False))
    assert [m.text for m in trace] == ["go", "a1", "more", "a2"]
    assert not any(m.main for m in trace)


def test_two_runs_of_a_sub_agent_with_one_id_keep_their_questions(parrot: Provider, store: Store) -> None:
    """C12: a run that begins has a root of its own, whoever else has its id and asks the same."""
    config = Config("openai-compatible", "m", parrot.url + "/v1", "k", allow_insecure_base_url=True)
    client = new_client(config)
    assert isinstance(client, Client)
    with client:
        hitherto.record(client, store).chat("begin")
        runs = [hitherto.record(openai_at(parrot), store, subagent="r", run_id="1", within=client) for _ in range(2)]
    histories = [[user("same")] for _ in runs]
    for _ in range(2):  # each hears the other's while it goes on
        for agent, history in zip(runs, histories, strict=True):
            done = agent.chat.completions.create(model="m", messages=history)
            history += [assistant(done.choices[0].message.content), user("more")]
    trace = list(store.messages(label="subagent:r:1", newest_first=False))
    assert [m.text for m in trace] == ["same", "a2", "same", "a3", "more", "a4", "more", "a5"]
    first, second = (m for m in trace if m.parent is None)
    assert first.link == second.link is not None
    for root, wanted in ((first, ["same", "a2", "more", "a4"]), (second, ["same", "a3", "more", "a5"])):
        leaf = next(m for m in trace if m.text == wanted[-1])
        assert [m.text for m in store.thread(leaf)] == wanted
        assert store.thread(leaf)[0].id == root.id


def test_a_run_that_is_resumed_goes_on_below_what_it_said(parrot: Provider, store: Store) -> None:
    """The control: what a handle already stands at is known."""
    talk = store.start()
    talk.append(Message.user("begin"))
    agent = talk.subagent("r", "1")
    agent.append(Message.user("same"))
    client = hitherto.record(openai_at(parrot), store, conversation=agent)
    client.chat.completions.create(model="m", messages=[user("same")])
    assert [m.text for m in store.messages(subagent="r", newest_first=False)] == ["same", "a1"]


def test_an_image_of_fifty_megabytes_is_kept_once_and_comes_back(parrot: Provider, tmp_path: Any) -> None:
    """D12: it is no text, although the provider's JSON has it as such."""
    image = random.Random(5).randbytes(50_000_000)
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    sent: Json = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    with hitherto.open(tmp_path / "c.db") as store:
        openai_sdk = hitherto.record(openai_at(parrot), store)
        openai_sdk.chat.completions.create(model="m", messages=[sent])
        talk = store.latest()
        assert talk is not None
        assert hitherto.history(talk)[0] == sent
        assert talk.thread()[0].blocks[0].content == image
        assert store.stats().stored_bytes < 60_000_000


def test_a_closed_store_asks_no_model(parrot: Provider) -> None:
    store = hitherto.open("memory:")
    talker = OpenAIChat(parrot, store)
    store.close()
    with pytest.raises(hitherto.Closed):
        talker.say("one")
    assert parrot.asked == []


def test_a_turn_is_a_commit_for_the_question_and_one_for_the_answer(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is written."""
    commits: list[Batch] = []
    commit = store.backend.commit

    def counted(batches: Any) -> list[Outcome]:
        commits.extend(batches)
        return commit(batches)

    monkeypatch.setattr(store.backend, "commit", counted)
    talker = OpenAIChat(parrot, store)
    talker.say("one")
    assert len(commits) == 2
    for n in range(5):
        talker.say(f"more {n}")
    assert len(commits) == 12


# -- checkpoints


def test_checkpoints_are_made_after_so_many_answers(parrot: Provider, store: Store) -> None:
    """A11."""
    made: list[hitherto.snapshots.Snapshot] = []
    talker = OpenAIChat(parrot, store, checkpoint=made.append, checkpoint_turns=2)
    for n in range(5):
        talker.say(f"q{n}")
        recording = hitherto.recording(talker.sdk)
        assert recording is not None
        recording.flush()
    assert [len(snapshot.messages or ()) for snapshot in made] == [4, 8]
    assert (made[0].provider, made[0].system_prompt) == ("openai", "Be terse.")
    spoken = dialect("openai-chat")
    kept = [spoken.likeness(raw) for raw in made[1].messages or ()]
    assert kept == [spoken.likeness(raw) for raw in talker.history[:8]]


def test_a_checkpoint_that_fails_disturbs_nobody(
    parrot: Provider, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(snapshot: object) -> None:
        raise OSError("no bucket")

    talker = OpenAIChat(parrot, store, checkpoint=fail)
    assert talker.say("one") == "a1"
    recording = hitherto.recording(talker.sdk)
    assert recording is not None
    recording.flush()
    assert "checkpoint" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"checkpoint": 5},
        {"checkpoint": print, "checkpoint_turns": 0},
        {"checkpoint": print, "checkpoint_seconds": -1},
        {"partial_seconds": 0},
        {"title": 5},
        {"metadata": {"a": 1}},
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_tapped(wrong: Any, parrot: Provider, store: Store) -> None:
    sdk = openai_at(parrot)
    with pytest.raises(hitherto.InvalidArgument):
        hitherto.record(sdk, store, **wrong)
    assert not hitherto.recorder.is_recorded(sdk)


def test_a_message_that_holds_what_cannot_be_kept_is_refused_and_the_model_not_asked(
    parrot: Provider, store: Store
) -> None:
    talker = OpenAIChat(parrot, store)
    with pytest.raises(hitherto.PayloadTooLarge):
        talker.say("x" * 11_000_000)
    assert parrot.asked == []
    assert store.stats().messages == 0
    assert Message.user("x").text == "x"


def test_a_conversation_is_given_by_its_handle_or_its_id_and_nothing_else(parrot: Provider, store: Store) -> None:
    talk = store.start()
    talker = OpenAIChat(parrot, store, conversation=talk.id)
    talker.say("one")
    assert [m.text for m in store.conversation(talk.id).thread()] == ["one", "a1"]
    with hitherto.open("memory:") as other:
        foreign = other.start()
        for wrong in ("no such thing", 5, "00000000-0000-4000-8000-000000000000", foreign):
            with pytest.raises((hitherto.InvalidArgument, hitherto.NotFound)):
                hitherto.record(openai_at(parrot), store, conversation=wrong)  # type: ignore[arg-type]
        with hitherto.into(foreign), pytest.raises(hitherto.InvalidArgument, match="another store"):
            talker.say("two")
    for nothing in ("text", None):
        with pytest.raises(hitherto.InvalidArgument), hitherto.into(nothing):  # type: ignore[type-var]
            pass
    for seconds in (0, -1, "x", None):
        with pytest.raises(hitherto.InvalidArgument):
            hitherto.resume(openai_at(parrot), store, talk, partial_seconds=seconds)  # type: ignore[arg-type]
    assert len(parrot.asked) == 1


def test_an_async_handle_can_be_talked_into(parrot: Provider, tmp_path: Any) -> None:
    async def main() -> list[str]:
        async with hitherto.open_async(tmp_path / "a.db") as store:
            talk = await store.start()
            async with hitherto.record(openai.AsyncOpenAI(base_url=parrot.url + "/v1", api_key="k"), store) as sdk:
                with hitherto.into(talk):
                    await sdk.chat.completions.create(model="m", messages=[user("one")])
            return [m.text for m in await (await store.conversation(talk.id)).thread()]

    assert asyncio.run(main()) == ["one", "a1"]


# -- what a hostile reader found


@pytest.mark.parametrize("own", [True, False])
def test_what_streamed_is_kept_when_the_store_is_closed_first(own: bool, tmp_path: Any) -> None:
    """An exception in the loop's body keeps the stream alive, and the store is closed before it."""
    with provider(
        lambda _: Reply(events=[*chat_events("one two three")[:4], lambda: release.wait(30) and None])
    ) as server:
        release = threading.Event()
        try:
            with hitherto.open(tmp_path / "c.db") as store:
                if own:
                    config = Config("openai-compatible", "m", server.url + "/v1", "k", allow_insecure_base_url=True)
                    client = new_client(config)
                    assert isinstance(client, Client)
                    _opened.append(client.close)
                    stream: Any = hitherto.record(client, store).stream("q")
                else:
                    sdk = hitherto.record(openai_at(server), store)
                    stream = sdk.chat.completions.create(model="m", messages=[user("q")], stream=True)
                for number, _ in enumerate(stream):
                    if number == 2:
                        raise ZeroDivisionError
        except ZeroDivisionError as error:
            held = error  # and with it the frames, and the stream
        release.set()
        del held
    with hitherto.open(tmp_path / "c.db") as store:
        talk = store.latest()
        assert talk is not None
        (partial,) = talk.partials()
        assert partial.text.startswith("one two ")


def test_a_trace_that_is_talked_into_and_the_main_flow_stay_apart(parrot: Provider, store: Store) -> None:
    """C12, in either order, also where the provider keeps the history."""
    sdk = hitherto.record(openai_at(parrot), store)
    talk = store.start()
    with hitherto.into(talk):
        sdk.chat.completions.create(model="m", messages=[user("main")])
    trace = store.conversation(talk.id).subagent("bob", "r1")
    with hitherto.into(trace):
        sdk.chat.completions.create(model="m", messages=[user("sub")])
        sdk.responses.create(model="m", input="sub too", previous_response_id="resp_unknown")
    with hitherto.into(talk):
        sdk.chat.completions.create(model="m", messages=[user("main"), assistant("a1"), user("more")])
    assert [m.text for m in store.conversation(talk.id).thread()] == ["main", "a1", "more", "a4"]
    traced = list(store.messages(subagent="bob", newest_first=False))
    assert [m.text for m in traced] == ["sub", "a2", "sub too", "a3"]


def test_what_was_purged_begins_anew(parrot: Provider, store: Store) -> None:
    talker = OpenAIChat(parrot, store)
    talker.say("Hello")
    talk = store.latest()
    assert talk is not None
    store.purge(talk, reason="user-requested")
    talker.say("And?")
    assert [text for _, text in texts(store)] == ["Hello", "a1", "And?", "a2"]


def test_an_answer_that_can_never_be_kept_blocks_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Its question was deleted while it was on its way."""

    def answer(asked: Asked) -> Json:
        if len(server.asked) == 2:
            talk = store.latest()
            assert talk is not None
            store.delete([talk.at or ""])
        return chat_answer(f"a{len(server.asked)}")

    with provider(answer) as server:
        talker = OpenAIChat(server, store)
        for question in ("one", "two", "three"):
            talker.say(question)
        recording = hitherto.recording(talker.sdk)
        assert recording is not None
        assert recording.pending == 0
    assert "is lost" in caplog.text
    assert [text for _, text in texts(store)] == ["one", "a1", "two", "a2", "three", "a3"]  # sent again, kept again


def test_one_equal_answer_makes_no_conversation_the_same(tmp_path: Any) -> None:
    with provider(lambda _: chat_answer("Sure.")) as server:
        with hitherto.open(tmp_path / "c.db") as store:
            b = OpenAIChat(server, store)
            b.say("b one")
        with hitherto.open(tmp_path / "c.db") as store:
            a = OpenAIChat(server, store)
            a.say("a one")
            a.history = b.history
            a.say("b two")
            assert [text for _, text in texts(store)] == ["b one", "Sure.", "b two", "Sure."]
            assert sorted(talk.count for talk in store.conversations().items) == [2, 4]


def test_all_choices_are_held_if_the_disk_is_full(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Full(store, monkeypatch)

    def answer(asked: Asked) -> Json:
        disk.full = True
        whole = chat_answer("first")
        whole["choices"].append({**whole["choices"][0], "index": 1, "message": assistant("second")})
        return whole

    with provider(answer) as server:
        talker = OpenAIChat(server, store)
        talker.say("one")
    recording = hitherto.recording(talker.sdk)
    assert recording is not None
    assert recording.pending == 2
    disk.full = False
    recording.flush()
    assert texts(store) == [("user", "one"), ("assistant", "first")]
    assert sorted(m.text for m in store.messages()) == ["first", "one", "second"]


def test_credentials_of_tools_elsewhere_are_not_kept(parrot: Provider, store: Store) -> None:
    tool = {"type": "mcp", "server_label": "s", "server_url": "https://h.test", "authorization": "secret-1"}
    tool_with_headers = {**tool, "headers": {"Authorization": "secret-2"}}
    sdk = hitherto.record(openai_at(parrot), store)
    sdk.responses.create(model="m", input="q", tools=[tool_with_headers])
    talk = store.latest()
    assert talk is not None
    assert "server_url" in str(talk.setup)
    assert "secret" not in str(talk.setup)


def test_a_copy_of_an_anthropic_client_fails_at_once_if_the_store_does(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Full(store, monkeypatch)
    talker = Anthropic(parrot, store)
    disk.full = True
    with pytest.raises(StorageFull):  # once, as it is: the SDK makes an error of the connection of it, and tries again
        talker.sdk.with_options(max_retries=5).messages.create(model="m", max_tokens=9, messages=[user("one")])
    assert parrot.asked == []
