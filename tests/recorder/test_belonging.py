"""Tests of attribution: the client, the conversation and the setup that a request and its answer belong to.

Real SDKs speak real HTTP to a provider on loopback. Beside each claim stands its control. Requirements: C10, C11, C12.
"""

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from google import genai

import hitherto
from hitherto import Message, Store
from hitherto.chat import Client, Config, new_client
from hitherto.errors import ProviderError
from hitherto.recorder import _calls, _history_match, _known_conversations, _recorder
from hitherto.recorder._sent_requests import SentRequest, SentRequests

from ..support.provider import Asked, Cut, Provider, Reply, chat_answer, provider
from .test_recorder import assistant, user

Json = Any


@pytest.fixture
def closing() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


_opened: list[Any] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Nothing is left open."""
    yield
    while _opened:
        _opened.pop().close()


def opened(client: Any) -> Any:
    _opened.append(client)
    return client


def openai_at(server: Provider, **more: Any) -> Any:
    return opened(openai.OpenAI(base_url=server.url + "/v1", api_key="k", **({"max_retries": 0} | more)))


def anthropic_at(server: Provider, **more: Any) -> Any:
    return opened(anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0, **more))


def gemini_at(server: Provider, **more: Any) -> Any:
    options: Any = {"base_url": server.url, **more}
    return opened(genai.Client(api_key="k", http_options=options))


def create(sdk: Any, *messages: Json, system: str | None = None, model: str = "m", **more: Any) -> str:
    """One chat completion; its text."""
    prompt = [] if system is None else [{"role": "system", "content": system}]
    done = sdk.chat.completions.create(model=model, messages=[*prompt, *messages], **more)
    return str(done.choices[0].message.content)


def threads(store: Store) -> list[list[str]]:
    """The threads of all conversations, the oldest conversation first."""
    infos = sorted(store.conversations().items, key=lambda info: info.created_at)
    return [[m.text for m in store.conversation(info.id).thread()] for info in infos]


def thread(store: Store, key: str) -> list[str]:
    return [message.text for message in store.ensure(key).thread()]


def asides(store: Store) -> list[list[str]]:
    """The messages beside the main flow, by root."""
    found: dict[str, list[str]] = {}
    for message in store.messages(subagent="side-call", newest_first=False):
        assert not message.main
        found.setdefault(message.label or "", []).append(message.text)
    return list(found.values())


# -- the client that makes the call


class Pair:
    """Two clients of one SDK over one HTTP client, and how they ask."""

    def __init__(self, server: Provider, stack: contextlib.ExitStack) -> None:
        raise NotImplementedError

    def ask(self, which: int, text: str) -> None:
        raise NotImplementedError

    clients: list[Any]


class OpenAIPair(Pair):
    def __init__(self, server: Provider, stack: contextlib.ExitStack) -> None:
        http = stack.enter_context(httpx2.Client())
        self.clients = [openai_at(server, http_client=http) for _ in range(2)]

    def ask(self, which: int, text: str) -> None:
        create(self.clients[which], user(text))


class AnthropicPair(Pair):
    def __init__(self, server: Provider, stack: contextlib.ExitStack) -> None:
        http = stack.enter_context(httpx2.Client())
        self.clients = [anthropic_at(server, http_client=http) for _ in range(2)]

    def ask(self, which: int, text: str) -> None:
        self.clients[which].messages.create(model="m", max_tokens=9, messages=[user(text)])


class GeminiPair(Pair):
    def __init__(self, server: Provider, stack: contextlib.ExitStack) -> None:
        http = stack.enter_context(httpx2.Client())
        self.clients = [gemini_at(server, httpx_client=http) for _ in range(2)]

    def ask(self, which: int, text: str) -> None:
        self.clients[which].models.generate_content(model="m", contents=text)


class AsyncPair(Pair):
    """Two clients that are awaited. The one that is not recorded asks while the other one's call is under way."""

    def __init__(self, server: Provider, stack: contextlib.ExitStack) -> None:
        self.loop = asyncio.new_event_loop()
        self.http = httpx2.AsyncClient()
        stack.callback(self.loop.close)
        stack.callback(lambda: self.loop.run_until_complete(self.http.aclose()))
        self.clients = [
            openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="k", http_client=self.http) for _ in range(2)
        ]

    def ask(self, which: int, text: str) -> None:
        self.loop.run_until_complete(self.clients[which].chat.completions.create(model="m", messages=[user(text)]))


class AsyncAnthropicPair(AsyncPair):
    def __init__(self, server: Provider, stack: contextlib.ExitStack) -> None:
        super().__init__(server, stack)
        http = self.http
        self.clients = [anthropic.AsyncAnthropic(base_url=server.url, api_key="k", http_client=http) for _ in range(2)]

    def ask(self, which: int, text: str) -> None:
        self.loop.run_until_complete(
            self.clients[which].messages.create(model="m", max_tokens=9, messages=[user(text)])
        )


PAIRS = [OpenAIPair, AnthropicPair, GeminiPair, AsyncPair, AsyncAnthropicPair]


@pytest.mark.parametrize("kind", PAIRS)
def test_a_client_that_shares_the_transport_of_a_recorded_one_is_not_recorded(
    kind: type[Pair], parrot: Provider, store: Store, closing: contextlib.ExitStack
) -> None:
    pair = kind(parrot, closing)
    hitherto.record(pair.clients[0], store)
    pair.ask(1, "of b")
    assert store.stats().messages == 0
    pair.ask(0, "of a")  # the control: what is recorded is kept
    assert threads(store) == [["of a", "a2"]]
    assert not hitherto.recorder.is_recorded(pair.clients[1])


@pytest.mark.parametrize("kind", PAIRS)
def test_two_clients_that_share_a_transport_have_each_a_store(
    kind: type[Pair], parrot: Provider, store: Store, closing: contextlib.ExitStack
) -> None:
    with hitherto.open("memory:") as other:
        pair = kind(parrot, closing)
        hitherto.record(pair.clients[0], store)
        hitherto.record(pair.clients[1], other)
        for which, text in ((0, "of a"), (1, "of b"), (0, "of a again")):
            pair.ask(which, text)
        assert threads(store) == [["of a", "a1"], ["of a again", "a3"]]
        assert threads(other) == [["of b", "a2"]]
        hitherto.recording(pair.clients[0]).close()  # and the end of one is not the end of the other
        pair.ask(0, "not kept")
        pair.ask(1, "kept")
        assert store.stats().messages == 4
        assert threads(other) == [["of b", "a2"], ["kept", "a5"]]


def test_without_the_note_of_the_call_a_shared_transport_is_shared(
    parrot: Provider, store: Store, closing: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a listener of the transport gets the requests of all clients."""
    pair = OpenAIPair(parrot, closing)
    hitherto.record(pair.clients[0], store)
    listening = _calls.listening_to(pair.clients[0])
    assert listening is not None
    monkeypatch.setattr(_calls, "_on_request", lambda _, sent: listening.on_request(sent))
    fresh = OpenAIPair(parrot, closing)
    hitherto.record(fresh.clients[0], store)
    fresh.ask(1, "of b")
    assert threads(store) == [["of b", "a1"]]


@pytest.mark.parametrize("name", ["with_options", "copy"])
def test_a_copy_of_a_recorded_client_is_recorded_and_ends_with_it(name: str, parrot: Provider, store: Store) -> None:
    sdk = hitherto.record(openai_at(parrot), store)
    copied = getattr(sdk, name)(timeout=5)
    again = copied.with_options(timeout=6)
    for client in (copied, again):
        assert hitherto.recorder.is_recorded(client)
    create(copied, user("one"))
    create(again, user("one"), assistant("a1"), user("two"))
    assert threads(store) == [["one", "a1", "two", "a2"]]
    hitherto.recording(copied).close()
    for client in (sdk, copied, again):
        assert not hitherto.recorder.is_recorded(client)
        create(client, user("not kept"))
    assert store.stats().messages == 4
    before = openai_at(parrot)
    earlier = before.with_options(timeout=5)  # the control: one that was made before is a client of its own
    hitherto.record(before, store)
    assert not hitherto.recorder.is_recorded(earlier)


def test_a_copy_with_a_transport_of_its_own_is_recorded(parrot: Provider, store: Store) -> None:
    sdk = hitherto.record(openai_at(parrot), store)
    with httpx2.Client() as http:
        create(sdk.with_options(http_client=http), user("one"))
    assert threads(store) == [["one", "a1"]]


def test_a_client_that_nobody_has_any_more_is_let_go_of(parrot: Provider, store: Store) -> None:
    """Wrapping must not keep a client, or what it records to, alive."""
    gone = []
    for _ in range(5):
        with openai.OpenAI(base_url=parrot.url + "/v1", api_key="k") as sdk:
            create(hitherto.record(sdk, store), user("one"))
            gone.append(weakref.ref(sdk))
    del sdk
    gc.collect()  # an SDK client has cycles of its own
    assert [reference() for reference in gone] == [None] * 5


# -- what a framework has


class Model:
    """A model of a framework, with its client in an attribute."""

    def __init__(self, **clients: Any) -> None:
        vars(self).update(clients)


@pytest.mark.parametrize("name", ["root_client", "client", "_client", "async_client"])
def test_a_refusal_names_the_attribute_to_give(name: str, parrot: Provider, store: Store) -> None:
    model = Model(**{name: openai_at(parrot)})
    with pytest.raises(hitherto.InvalidArgument) as caught:
        hitherto.record(model, store)
    assert f"`{name}`" in (caught.value.hint or "")
    with pytest.raises(hitherto.InvalidArgument) as caught:  # the control: where there is none, none is named
        hitherto.record(Model(**{name: "text"}), store)
    assert f"`{name}`" not in (caught.value.hint or "")


def test_a_part_of_a_client_names_the_client(parrot: Provider, store: Store) -> None:
    sdk = openai_at(parrot)
    for part in (sdk.chat, sdk.chat.completions, sdk.responses):
        with pytest.raises(hitherto.InvalidArgument) as caught:
            hitherto.record(part, store)
        assert "`_client`" in (caught.value.hint or "")


def test_an_attribute_that_fails_does_not_hide_the_refusal(store: Store) -> None:
    class Broken:
        @property
        def client(self) -> object:
            raise ZeroDivisionError

    with pytest.raises(hitherto.InvalidArgument, match="cannot be recorded"):
        hitherto.record(Broken(), store)


@pytest.mark.parametrize("how", ["recording", "store"])
def test_a_recording_that_ends_without_a_request_says_so(
    how: str, parrot: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    """A framework that was given a client may use another."""
    store = hitherto.open("memory:")
    silent, used = hitherto.record(openai_at(parrot), store), hitherto.record(openai_at(parrot), store)
    create(used, user("one"))
    if how == "recording":
        hitherto.recording(used).close()
        assert "no request" not in caplog.text
        hitherto.recording(silent).close()
        assert caplog.text.count("no request") == 1
    store.close()
    assert caplog.text.count("no request") == 1


# -- the conversation


def test_two_people_who_begin_alike_have_a_conversation_each(store: Store) -> None:
    """Also if they get the same answers for a while."""
    with provider(lambda _: chat_answer("Hello! How can I help?")) as server:
        sdk = hitherto.record(openai_at(server), store)
        ann = [user("Hello")]
        bob = [user("Hello")]
        for said in (ann, bob):
            said.append(assistant(create(sdk, *said)))
        assert threads(store) == [["Hello", "Hello! How can I help?"]] * 2
        for said, text in ((ann, "I am Ann"), (bob, "I am Bob"), (bob, "and?"), (ann, "and?")):
            said.append(user(text))
            said.append(assistant(create(sdk, *said)))
        found = threads(store)
        assert sorted([texts[2] for texts in found]) == ["I am Ann", "I am Bob"]
        assert all(len(texts) == 6 for texts in found)
        for info in store.conversations().items:
            assert len(store.conversation(info.id).branches()) == 1


def test_two_who_ask_the_same_twice_and_are_answered_alike_share_nothing(store: Store) -> None:
    """The second of them goes on with what nobody has gone on with."""
    with provider(lambda _: chat_answer("ok")) as server:
        sdk = hitherto.record(openai_at(server), store)
        for _ in range(2):
            create(sdk, user("Hello"))
        for _ in range(2):
            create(sdk, user("Hello"), assistant("ok"), user("more"))
    assert threads(store) == [["Hello", "ok", "more", "ok"]] * 2


def test_two_who_are_answered_alike_through_two_workers_share_nothing(tmp_path: Any) -> None:
    """The worker that is asked has a conversation with these answers, and somebody has gone on with it: the one that is
    meant was kept by the other worker."""
    with provider(lambda _: chat_answer("ok")) as server, hitherto.open(tmp_path / "c.db") as store:
        one, two = (hitherto.record(openai_at(server), store) for _ in range(2))
        create(one, user("Hello"))
        create(one, user("Hello"), assistant("ok"), user("of ann"))
        create(two, user("Hello"))
        create(one, user("Hello"), assistant("ok"), user("of bob"))
        assert threads(store) == [["Hello", "ok", "of ann", "ok"], ["Hello", "ok", "of bob", "ok"]]
        create(
            one, user("Hello"), assistant("ok"), user("of bob, said otherwise")
        )  # the control: a branch of one of them
        assert len(threads(store)) == 2


def test_many_who_say_the_same_at_the_same_time_have_a_conversation_each(store: Store) -> None:
    with provider(lambda _: chat_answer("ok")) as server:
        sdk = hitherto.record(openai_at(server), store)
        errors: list[BaseException] = []

        def person() -> None:
            try:
                said: list[Json] = []
                for text in ("Hello", "more", "and more"):
                    said.append(user(text))
                    said.append(assistant(create(sdk, *said)))
            except BaseException as error:  # noqa: BLE001  # it is shown in the main thread
                errors.append(error)

        people = [threading.Thread(target=person) for _ in range(16)]
        for one in people:
            one.start()
        for one in people:
            one.join(120)
    assert errors == []
    found = threads(store)
    assert store.stats().messages == 16 * 6
    assert found == [["Hello", "ok", "more", "ok", "and more", "ok"]] * 16


@pytest.mark.parametrize("way", ["_go_on", "_go_on_after"])
def test_whoever_is_about_to_go_on_has_taken_that_conversation(
    way: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ann goes on with the only conversation that there is. Before that is written, Bob begins alike and goes on, too:
    with his own. It is the same whether the whole history is compared, or only what follows an earlier request."""
    found, used, written = threading.Event(), threading.Event(), threading.Event()
    begun = threading.Event()
    go_on = getattr(_recorder.Recorder, way)

    def slowly(self: Any, first: Any, *args: Any, **more: Any) -> Any:
        if threading.current_thread() is ann:
            found.set()
            assert begun.wait(30)
            recorded = first.recorded if isinstance(first, SentRequest) else first
            self._conversations.use(recorded)  # so that it is compared first
            used.set()
            assert written.wait(30)
        return go_on(self, first, *args, **more)

    monkeypatch.setattr(_recorder.Recorder, way, slowly)
    if way == "_go_on":
        monkeypatch.setattr(SentRequests, "find", lambda *_: None)
    with provider(lambda _: chat_answer("ok")) as server:
        sdk = hitherto.record(openai_at(server), store)
        more = [user("Hello"), assistant("ok"), user("more")]
        create(sdk, user("Hello"))
        ann = threading.Thread(target=create, args=(sdk, *more))
        ann.start()
        assert found.wait(30)
        create(sdk, user("Hello"))
        begun.set()
        assert used.wait(30)
        create(sdk, *more)
        written.set()
        ann.join(60)
    assert threads(store) == [["Hello", "ok", "more", "ok"]] * 2
    assert store.stats().messages == 8


def test_without_proof_by_answers_two_people_would_share(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a recorder that takes equal words for the same conversation."""

    def begins_alike(self: Any, history: Any, *_: object) -> Any:
        ours = self._conversations.values()
        found = next((one for one in ours if one.tree.follow(history).count), None)
        return None if found is None else self.claim(found, None)

    monkeypatch.setattr(_known_conversations.KnownConversations, "find", begins_alike)
    with provider(lambda _: chat_answer("ok")) as server:
        sdk = hitherto.record(openai_at(server), store)
        for _ in range(2):
            create(sdk, user("Hello"))
    assert len(threads(store)) == 1


def test_examples_in_a_prompt_prove_nothing(parrot: Provider, store: Store) -> None:
    """An answer that was only heard in a request was not given here."""
    sdk = hitherto.record(openai_at(parrot), store)
    shots = [user("2 + 2?"), assistant("4")]
    create(sdk, *shots, user("of ann"))
    create(sdk, *shots, user("of bob"))
    create(sdk, *shots, user("of ann"), assistant("a1"), user("more"))  # the control: this one was
    assert threads(store) == [["2 + 2?", "4", "of ann", "a1", "more", "a3"], ["2 + 2?", "4", "of bob", "a2"]]
    kept = next(iter(store.messages(newest_first=False, offset=1)))
    assert (kept.extra or {}).get(_history_match.FROM_REQUEST) is True


def test_an_opening_with_another_system_prompt_is_another_conversation(parrot: Provider, store: Store) -> None:
    sdk = hitherto.record(openai_at(parrot), store)
    for name in ("a", "b"):
        create(sdk, user("Hello"), system=f"for {name}", model=name)
    talks = [store.conversation(info.id) for info in store.conversations().items]
    assert sorted((talk.model, talk.system_prompt) for talk in talks) == [("a", "for a"), ("b", "for b")]


@pytest.mark.parametrize("bound", [False, True])
def test_each_answer_has_the_setup_of_its_own_request(bound: bool, parrot: Provider, store: Store) -> None:
    """Two requests over the same history, with another prompt and model: two answers, and two setups."""
    sdk = hitherto.record(openai_at(parrot), store)
    with hitherto.into(store.ensure("ann")) if bound else contextlib.nullcontext():
        create(sdk, user("Hello"), system="first", model="m0")
        for name in ("a", "b"):
            create(sdk, user("Hello"), assistant("a1"), user("more"), system=f"for {name}", model=name)
    talk = store.latest()
    assert talk is not None
    leaves = [talk.fork(at=branch.id) for branch in talk.branches()]
    found = sorted((leaf.thread()[-1].text, leaf.model, leaf.system_prompt) for leaf in leaves)
    assert found == [("a2", "a", "for a"), ("a3", "b", "for b")]
    assert talk.setups()[0].setup.system_prompt == "first"


@contextlib.contextmanager
def where(store: Store, how: str) -> Iterator[Any]:
    """Nothing is said about the conversation, or it is named."""
    if how == "into":
        with hitherto.into(store.ensure("ann")) as talk:
            yield talk
    else:
        yield None


HOW = pytest.mark.parametrize("how", ["found", "into", "pinned"])


def client_for(how: str, server: Provider, store: Store, **more: Any) -> Any:
    talk = store.ensure("ann") if how == "pinned" else None
    return hitherto.record(openai_at(server, **more), store, conversation=talk)


@HOW
@pytest.mark.parametrize(
    ("changed", "window"),
    [({}, 0), ({}, 2), ({}, 3), ({"system": "another"}, 0), ({"model": "another"}, 0), ({"system": "x"}, 2)],
)
def test_what_continues_a_conversation(how: str, changed: Json, window: int, parrot: Provider, store: Store) -> None:
    """The whole history, a window of it, another prompt or model over it."""
    sdk = client_for(how, parrot, store)
    said: list[Json] = []
    with where(store, how):
        for n in range(4):
            more: Any = changed if n > 1 else {"system": "first"}
            sent = [*(said[-window:] if window and n > 2 else said), user(f"q{n}")]
            answer = create(sdk, *sent, **({"system": "first"} | more))
            said += [user(f"q{n}"), assistant(answer)]
    assert threads(store) == [[text for n in range(4) for text in (f"q{n}", f"a{n + 1}")]]
    assert store.stats().messages == 8
    assert asides(store) == []


@HOW
def test_the_id_of_a_response_continues_a_conversation(how: str, parrot: Provider, store: Store) -> None:
    sdk = client_for(how, parrot, store)
    with where(store, how):
        last = None
        for n in range(3):
            more: Json = {} if last is None else {"previous_response_id": last}
            last = sdk.responses.create(model="m", input=f"q{n}", **more).id
    assert threads(store) == [["q0", "a1", "q1", "a2", "q2", "a3"]]
    assert asides(store) == []


@HOW
def test_a_retry_of_the_sdk_is_no_second_conversation(how: str, store: Store) -> None:
    """The first question fails twice before it is answered, and so does the second one."""

    def answer(asked: Asked) -> Reply | Json:
        return Reply({"error": {}}, status=500) if len(server.asked) % 3 else chat_answer(f"a{len(server.asked)}")

    with provider(answer) as server:
        sdk = client_for(how, server, store, max_retries=2)
        with where(store, how):
            create(sdk, user("one"))
            create(sdk, user("one"), assistant("a3"), user("two"))
        assert len(server.asked) == 6
    assert threads(store) == [["one", "a3", "two", "a6"]]
    assert store.stats().messages == 4


@HOW
def test_a_retry_after_a_broken_connection_is_no_second_conversation(how: str, store: Store) -> None:
    """Only the call that makes both requests learns that the first one failed."""

    def answer(asked: Asked) -> Json:
        if len(server.asked) % 2:
            raise Cut
        return chat_answer("ok")

    with provider(answer) as server:
        sdk = client_for(how, server, store, max_retries=2)
        with where(store, how):
            create(sdk, user("one"))
        assert len(server.asked) == 2
    assert threads(store) == [["one", "ok"]]
    assert store.stats().messages == 2
    assert asides(store) == []


def test_an_sdk_that_retries_while_another_asks_the_same_mixes_nothing_up(store: Store) -> None:
    """Two people send the same opening at the same time, and each request fails once."""
    gate = threading.Barrier(2)

    def answer(asked: Asked) -> Reply | Json:
        if asked.headers.get("x-stainless-retry-count") == "0":
            gate.wait(30)
            return Reply({"error": {}}, status=500)
        return chat_answer("ok")

    with provider(answer) as server:
        sdk = hitherto.record(openai_at(server, max_retries=2), store)
        people = [threading.Thread(target=create, args=(sdk, user("Hello"))) for _ in range(2)]
        for person in people:
            person.start()
        for person in people:
            person.join(60)
    assert threads(store) == [["Hello", "ok"]] * 2


@HOW
def test_a_question_that_failed_and_is_asked_again_is_kept_once(how: str, store: Store) -> None:
    def answer(asked: Asked) -> Reply | Json:
        return Reply({"error": {}}, status=500) if len(server.asked) in (1, 2) else chat_answer("ok")

    with provider(answer) as server:
        sdk = client_for(how, server, store)
        with where(store, how):
            for _ in range(2):
                with pytest.raises(openai.InternalServerError):
                    create(sdk, user("one"))
            create(sdk, user("one"))
        create(sdk, user("one"))  # the control: answered by now, so this is somebody else, or another answer
    assert threads(store)[0] == ["one", "ok"]
    assert store.stats().messages == (4 if how != "pinned" else 3)


@pytest.mark.parametrize("fresh", [False, True])
def test_the_documented_loop_sends_a_failed_question_once(fresh: bool, store: Store) -> None:
    """Whether the handle moves along, or is a new one each time. The one that failed stays as a branch."""

    def answer(asked: Asked) -> Reply | Json:
        return Reply({"error": {}}, status=500) if len(server.asked) in (2, 3) else chat_answer("ok")

    with provider(answer) as server:
        sdk = hitherto.record(openai_at(server), store)
        talk = store.ensure("ann")
        for question in ("one", "two", "two", "two", "three"):
            talk = store.ensure("ann") if fresh else talk
            with hitherto.into(talk), contextlib.suppress(openai.InternalServerError):
                create(sdk, *hitherto.history(talk), user(question))
        sent = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "user"]
        assert sent == ["one", "two", "three"]
        assert thread(store, "ann") == ["one", "ok", "two", "ok", "three", "ok"]
        with hitherto.into(talk), contextlib.suppress(openai.InternalServerError):
            server.asked[1:] = []
            create(sdk, *hitherto.history(talk), user("not answered"))
        server.asked.clear()
        with hitherto.into(talk):
            create(sdk, *hitherto.history(talk), user("four"))
    assert thread(store, "ann")[-4:] == ["three", "ok", "four", "ok"]
    assert len(store.ensure("ann").branches()) == 2  # what failed, and was not asked again


def test_a_question_that_was_never_sent_is_part_of_the_history(parrot: Provider, store: Store) -> None:
    """A program that keeps a conversation by hand appends the question, and sends the history."""
    talk = store.start(provider="openai")
    talk.append(Message.user("by hand"))
    assert hitherto.history(talk) == [user("by hand")]
    sdk = hitherto.record(openai_at(parrot), store, conversation=talk)
    create(sdk, *hitherto.history(talk))
    asked = talk.fork(at=talk.thread()[0])
    assert hitherto.history(asked) == [user("by hand")]  # answered: who stands there wants another answer
    assert [m.text for m in talk.thread()] == ["by hand", "a1"]


# -- beside the conversation


@pytest.mark.parametrize("how", ["into", "pinned"])
def test_a_side_call_does_not_take_over(how: str, parrot: Provider, store: Store) -> None:
    """A title, a guard with the same question, a sub-agent with several steps: none of them is the conversation."""
    sdk = client_for(how, parrot, store)
    with where(store, how):
        create(sdk, user("hello"), system="main")
        create(sdk, user("Title for: hello"))
        create(sdk, user("hello"), system="Is it spam?")
        create(sdk, user("hello"), assistant("a3"), user("Sure?"), system="Is it spam?")
        create(sdk, user("hello"), assistant("a1"), user("and?"), system="main")
    assert thread(store, "ann") == ["hello", "a1", "and?", "a5"]
    assert asides(store) == [["Title for: hello", "a2"], ["hello", "a3", "Sure?", "a4"]]
    links = {m.link for m in store.messages(subagent="side-call") if m.parent is None}
    assert links == {store.ensure("ann").thread()[1].id}
    found = [m for m in store.messages(subagent="side-call", newest_first=False) if m.role == "assistant"]
    assert store.conversation(found[1]).system_prompt == "Is it spam?"
    assert len(store.conversations().items) == 1
    assert store.verify().ok


def test_whoever_takes_all_for_the_conversation_loses_its_head(
    parrot: Provider, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(_recorder.Recorder, "_continues", lambda *_, **__: True)
    sdk = hitherto.record(openai_at(parrot), store)
    with hitherto.into(store.ensure("ann")):
        create(sdk, user("hello"))
        create(sdk, user("Title for: hello"))
    assert thread(store, "ann") == ["Title for: hello", "a2"]


def test_a_side_call_while_the_first_question_is_on_its_way_is_one(store: Store) -> None:
    """A guard runs beside the question that it guards. Nothing is answered yet; still it is not the conversation."""
    asked, done = threading.Event(), threading.Event()

    def answer(sent: Asked) -> Json:
        if sent.body["messages"][-1]["content"] == "hello":
            asked.set()
            done.wait(30)
        return chat_answer("ok")

    with provider(answer) as server:
        sdk = hitherto.record(openai_at(server), store)

        def main() -> None:
            with hitherto.into(store.ensure("ann")):
                create(sdk, user("hello"))

        other = threading.Thread(target=main)
        other.start()
        assert asked.wait(30)
        with hitherto.into(store.ensure("ann")):
            create(sdk, user("Is it spam?"))
        done.set()
        other.join(60)
    assert thread(store, "ann") == ["hello", "ok"]
    assert asides(store) == [["Is it spam?", "ok"]]


@pytest.mark.parametrize("how", ["into", "pinned"])
def test_a_check_before_the_first_question_does_not_begin_a_conversation_with_another_prompt(
    how: str, parrot: Provider, store: Store
) -> None:
    """A guard is asked first. Its question is not part of the request to the model."""
    talk = store.ensure("ann", system_prompt="Be terse.")
    sdk = hitherto.record(openai_at(parrot), store, conversation=talk if how == "pinned" else None)
    with hitherto.into(talk) if how == "into" else contextlib.nullcontext():
        for question in ("hello", "and?"):
            create(sdk, user(f"Is it spam? {question}"), system="You are a guard.")
            create(sdk, *hitherto.history(talk), user(question))
    prompt = {"role": "system", "content": "Be terse."}
    assert parrot.bodies[1]["messages"] == [prompt, user("hello")]
    assert [m["content"] for m in parrot.bodies[3]["messages"]] == ["Be terse.", "hello", "a2", "and?"]
    assert thread(store, "ann") == [m.text for m in talk.thread()] == ["hello", "a2", "and?", "a4"]
    assert asides(store) == [["Is it spam? hello", "a1"], ["Is it spam? and?", "a3"]]
    assert len(store.conversations().items) == 1


@pytest.mark.parametrize("prompt", ["Be terse. Today is Monday.", None, "You are a guard."])
def test_a_conversation_begins_with_its_prompt_a_longer_one_or_none(
    prompt: str | None, parrot: Provider, store: Store
) -> None:
    """Frameworks add words of their own to a prompt. The last one is the control."""
    sdk = hitherto.record(openai_at(parrot), store)
    with hitherto.into(store.ensure("ann", system_prompt="Be terse.")):
        create(sdk, user("hello"), system=prompt)
    assert thread(store, "ann") == ([] if prompt == "You are a guard." else ["hello", "a1"])


def test_a_conversation_without_a_prompt_begins_with_any(parrot: Provider, store: Store) -> None:
    sdk = hitherto.record(openai_at(parrot), store)
    with hitherto.into(store.ensure("ann")):
        create(sdk, user("hello"), system="You are a guard.")
    assert thread(store, "ann") == ["hello", "a1"]


def test_a_client_of_ours_begins_its_conversation_with_any_prompt(parrot: Provider, store: Store) -> None:
    """It holds one conversation, and asks nothing beside it."""
    talk = store.start(system_prompt="Be terse.")
    url, prompt = parrot.url + "/v1", "Be kind."
    config = Config("openai-compatible", "m", url, "k", system_prompt=prompt, allow_insecure_base_url=True)
    client = opened(new_client(config))
    hitherto.record(client, store, conversation=talk).chat("hello")
    assert [m.text for m in talk.thread()] == ["hello", "a1"]
    assert talk.system_prompt == "Be kind."


def test_a_prompt_with_a_secret_is_the_same_prompt_after_cleaning(parrot: Provider, store: Store) -> None:
    """The conversation was started before anything was cleaned; what is recorded is cleaned."""
    prompt = "Use the token ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8."
    sdk = hitherto.record(openai_at(parrot), store, sanitiser=hitherto.Sanitiser.secrets())
    with hitherto.into(store.ensure("ann", system_prompt=prompt)):
        create(sdk, user("hello"), system=prompt)
    assert thread(store, "ann") == ["hello", "a1"]


def test_a_side_call_leaves_the_handle_where_it_is(parrot: Provider, store: Store) -> None:
    sdk = hitherto.record(openai_at(parrot), store)
    with hitherto.into(store.ensure("ann")) as talk:
        create(sdk, user("hello"))
        at = talk.at
        create(sdk, user("Title for: hello"))
        assert talk.at == at
        create(sdk, *hitherto.history(talk), user("and?"))
    assert [m.text for m in talk.thread()] == ["hello", "a1", "and?", "a3"]


def test_a_question_that_is_asked_once_more_gets_another_answer(parrot: Provider, store: Store) -> None:
    """The beginning with the same prompt is no side call: somebody did not like the answer."""
    sdk = hitherto.record(openai_at(parrot), store)
    with hitherto.into(store.ensure("ann")) as talk:
        for _ in range(2):
            create(sdk, user("hello"), system="main")
    assert thread(store, "ann") == ["hello", "a2"]
    assert len(talk.branches()) == 2
    assert asides(store) == []


def test_requests_of_one_session_belong_together(parrot: Provider, tmp_path: Any) -> None:
    """Coding agents name their session in a header; it is found again by a later process."""
    for key in (None, hitherto.Key.generate()):
        path = tmp_path / f"{key is None}.db"
        parrot.asked.clear()
        for n in range(2):
            with hitherto.open(path, key=key) as store:
                sdk = hitherto.record(openai_at(parrot, default_headers={"session-id": "s1"}), store)
                said = [user("hi"), assistant("a1"), user("more")][: 1 + 2 * n]
                create(sdk, *said)
                create(sdk, user("Title, please"))
                create(sdk, user("hi"), extra_headers={"session-id": "s2"})
        with hitherto.open(path, key=key) as store:
            assert [texts for texts in threads(store) if len(texts) > 2] == [["hi", "a1", "more", "a4"]]
            assert len(threads(store)) == 2
            assert asides(store)[0] == ["Title, please", "a2"]


def test_a_trace_may_be_linked_to_an_sdk_client(parrot: Provider, store: Store) -> None:
    """C12: `within` takes any recorded client."""
    boss = hitherto.record(openai_at(parrot), store)
    create(boss, user("go"))
    agent = openai_at(parrot)
    with pytest.raises(hitherto.InvalidArgument):
        hitherto.record(agent, store, subagent="researcher", within=openai_at(parrot))
    hitherto.record(agent, store, subagent="researcher", run_id="r1", within=boss)
    create(agent, user("find"))
    create(agent, user("find"), assistant("a2"), user("more"))
    trace = list(store.messages(label="subagent:researcher:r1", newest_first=False))
    assert [m.text for m in trace] == ["find", "a2", "more", "a3"]
    assert trace[0].link == store.conversation(trace[0].conversation).thread()[-1].id
    assert threads(store) == [["go", "a1"]]


# -- handles that move along


@pytest.mark.parametrize("how", ["into", "record", "resume"])
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "gemini"])
def test_the_documented_loop_remembers(how: str, kind: str, parrot: Provider, store: Store) -> None:
    """One handle for all turns: the history it gives is whole, and the system prompt is sent each time."""
    talk = store.start(system_prompt="Be terse.", provider={"anthropic": "claude", "gemini": "gemini"}.get(kind, ""))
    sdk, ask = asking(kind, parrot)
    if how == "into":
        hitherto.record(sdk, store)
    elif how == "record":
        hitherto.record(sdk, store, conversation=talk)
    else:
        hitherto.resume(sdk, store, talk)
    for n in range(3):
        with hitherto.into(talk) if how == "into" else contextlib.nullcontext():
            ask(talk, f"q{n}")
        assert talk.thread()[-1].text == f"a{n + 1}"
        assert talk.system_prompt == "Be terse."
    assert [m.text for m in talk.thread()] == ["q0", "a1", "q1", "a2", "q2", "a3"]
    assert len(talk.branches()) == 1
    body = parrot.bodies[-1]
    assert "Be terse." in str([body.get(name) for name in ("messages", "instructions", "system", "systemInstruction")])
    assert str(body).count("Be terse.") == 1


def asking(kind: str, server: Provider) -> tuple[Any, Callable[[Any, str], object]]:
    """A client, and the loop as it is documented, for each API."""
    if kind == "anthropic":
        claude = anthropic_at(server)
        return claude, lambda talk, text: claude.messages.create(
            model="m", max_tokens=9, system=talk.system_prompt, messages=[*hitherto.history(talk), user(text)]
        )
    if kind == "gemini":
        gemini = gemini_at(server)
        return gemini, lambda talk, text: gemini.models.generate_content(
            model="m",
            contents=[*hitherto.history(talk), {"role": "user", "parts": [{"text": text}]}],
            config={"system_instruction": talk.system_prompt},
        )
    sdk = openai_at(server)
    if kind == "responses":
        return sdk, lambda talk, text: sdk.responses.create(
            model="m",
            instructions=talk.system_prompt,
            input=[*hitherto.history(talk, "openai-responses"), user(text)],
        )
    return sdk, lambda talk, text: create(sdk, *hitherto.history(talk), user(text))


def test_a_handle_of_either_colour_moves_along(parrot: Provider, tmp_path: Any) -> None:
    async def main() -> tuple[list[str], str]:
        async with hitherto.open_async(tmp_path / "a.db") as store:
            talk = await store.start(system_prompt="Be terse.")
            async with openai.AsyncOpenAI(base_url=parrot.url + "/v1", api_key="k") as sdk:
                hitherto.resume(sdk, store, talk)
                for n in range(3):
                    sent = [*hitherto.history(talk), user(f"q{n}")]
                    await sdk.chat.completions.create(model="m", messages=sent)
            return [m.text for m in await talk.thread()], talk.system_prompt

    assert asyncio.run(main()) == (["q0", "a1", "q1", "a2", "q2", "a3"], "Be terse.")


def test_a_handle_given_to_a_client_of_ours_moves_along(parrot: Provider, store: Store) -> None:
    talk = store.start()
    talk.extend([Message.user("one"), Message.assistant("yes")])
    config = Config("openai-compatible", "m", parrot.url + "/v1", "k", allow_insecure_base_url=True)
    with new_client(config) as client:
        hitherto.resume(client, store, talk)
        client.chat("two")
        assert [m.text for m in talk.thread()] == ["one", "yes", "two", "a1"]


def test_a_handle_stands_at_the_question_while_there_is_no_answer(store: Store) -> None:
    """So that what had come of its answer can be accepted."""
    with provider(lambda _: Reply({"error": {}}, status=500)) as server:
        sdk = hitherto.record(openai_at(server), store)
        with hitherto.into(store.start()) as talk, pytest.raises(openai.InternalServerError):
            create(sdk, user("one"))
    assert [m.text for m in talk.thread()] == ["one"]
    assert hitherto.history(talk) == []
    assert hitherto.history(talk, unanswered=True) == [user("one")]


def test_the_history_begins_with_the_system_message_of_chat_completions(parrot: Provider, store: Store) -> None:
    talk = store.start(system_prompt="Be terse.")
    system = {"role": "system", "content": "Be terse."}
    assert hitherto.history(talk) == [system]
    assert hitherto.history(talk, system_prompt=False) == []
    for name in ("claude", "gemini", "openai-responses"):
        assert hitherto.history(talk, name) == []
    hitherto.resume(anthropic_at(parrot), store, talk)
    assert hitherto.history(talk) == []  # it is known by now whom it is held with
    sdk = hitherto.record(openai_at(parrot), store)
    shaped = {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]}
    with hitherto.into(store.start()) as other:
        create(sdk, shaped, user("one"))
    assert hitherto.history(other)[0] == shaped  # in its own form


# -- a client of ours


@pytest.mark.parametrize("kept", [True, False])
def test_a_question_that_failed_is_sent_once_when_it_is_said_again(kept: bool, store: Store) -> None:
    def answer(asked: Asked) -> Reply | Json:
        return Reply({"error": {}}, status=500) if len(server.asked) < 3 else chat_answer("ok")

    with provider(answer) as server:
        config = Config("openai-compatible", "m", server.url + "/v1", "k", allow_insecure_base_url=True, max_retries=0)
        client = new_client(config)
        assert isinstance(client, Client)
        with client:
            if kept:
                hitherto.record(client, store)
            for _ in range(2):
                with pytest.raises(ProviderError):
                    client.chat("one")
            client.chat("one")
            assert [m["content"] for m in server.bodies[-1]["messages"]] == ["one"]
            client.chat("one")  # the control: answered, so it is another one
            assert len(server.bodies[-1]["messages"]) == 3
    assert threads(store) == ([["one", "ok", "one", "ok"]] if kept else [])


def test_ending_a_recording_leaves_the_client_open(parrot: Provider, store: Store) -> None:
    config = Config("openai-compatible", "m", parrot.url + "/v1", "k", allow_insecure_base_url=True)
    with new_client(config) as client:
        hitherto.record(client, store)
        with hitherto.recording(client):
            client.chat("in")
        client.chat("out")
        assert not hitherto.recorder.is_recorded(client)
    sdk = hitherto.record(openai_at(parrot), store)
    with hitherto.recording(sdk):
        create(sdk, user("in"))
    create(sdk, user("out"))
    assert threads(store) == [["in", "a1"], ["in", "a3"]]
    with sdk:  # and this is the SDK's own
        pass
    assert sdk.is_closed()
