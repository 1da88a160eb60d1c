"""Our own clients, recorded and resumed: what was kept is gone on with as if nothing had happened.

Requirements: A3, B2, B3, C10, C11, C12, C18, D4.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import hitherto
from hitherto import Block, Message, Store
from hitherto.chat import AsyncClient, Client, Config, Tool, new_async_client, new_client
from hitherto.errors import StorageFull
from hitherto.recorder._recorded_conversation import RecordedConversation

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
KINDS = ["openai-compatible", "responses", "claude", "gemini"]


def config(kind: str, url: str, **more: Any) -> Config:
    name = "openai" if kind == "responses" else kind
    base = url if kind in ("claude", "gemini") else url + "/v1"
    api: Any = "responses" if kind == "responses" else "chat"
    given: Any = {"model": "m", "api_key": "k", "max_retries": 0, **more}
    return Config(provider=name, base_url=base, api=api, allow_insecure_base_url=True, **given)


def text_answer(kind: str, text: str) -> Json:
    return {
        "openai-compatible": lambda: chat_answer(text),
        "responses": lambda: responses_answer([responses_text(text)]),
        "claude": lambda: anthropic_answer(text),
        "gemini": lambda: gemini_answer(text),
    }[kind]()


def text_events(kind: str, text: str) -> list[Json]:
    return {
        "openai-compatible": chat_events,
        "responses": responses_events,
        "claude": anthropic_events,
        "gemini": gemini_events,
    }[kind](text)


def call_answer(kind: str, *calls: tuple[str, str, Json]) -> Json:
    """An answer that calls tools: (id, name, arguments) each; with reasoning that belongs to them where there is such
    a thing."""
    if kind == "openai-compatible":
        return chat_answer(None, calls=calls)
    if kind == "responses":
        reasoning = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
        items = [
            {"id": f"fc_{id}", "type": "function_call", "call_id": id, "name": name, "arguments": "{}"}
            for id, name, _ in calls
        ]
        return responses_answer([reasoning, *items])
    if kind == "claude":
        thinking = {"type": "thinking", "thinking": "Let me look.", "signature": "c2ln"}
        blocks = [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in calls]
        return anthropic_answer(thinking, *blocks, stop="tool_use")
    parts = [{"functionCall": {"name": name, "args": given}, "thoughtSignature": "c2ln"} for _, name, given in calls]
    return gemini_answer(*parts)


def entries(body: Json) -> list[Json]:
    found: list[Json] = body.get("messages") or body.get("input") or body.get("contents")
    return [entry for entry in found if entry.get("role") != "system"]


class Script:
    """A provider that gives these answers in turn, and waits for nobody."""

    def __init__(self, kind: str, *answers: Json) -> None:
        self.kind = kind
        self.answers = list(answers)

    def __call__(self, asked: Asked) -> Reply | Json:
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            streamed = asked.body.get("stream") or ":streamGenerateContent" in asked.path
            return Reply(events=text_events(self.kind, answer)) if streamed else text_answer(self.kind, answer)
        return answer() if callable(answer) else answer


def client(kind: str, server: Provider, *tools: Tool, **more: Any) -> Client:
    made = new_client(config(kind, server.url, **more))
    assert isinstance(made, Client)
    made.set_tools(tools)
    _open.append(made)
    return made


_open: list[Client] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()


def roles(store: Store) -> list[str]:
    talk = store.latest()
    assert talk is not None
    return [message.role for message in talk.thread()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_chat_says_the_same_on_the_wire_as_one_that_got_there_by_itself(kind: str, store: Store) -> None:
    """B2, with tools, images, streams and a system prompt, which is there once."""
    look = Tool("look", "Look.", {"type": "object", "properties": {}}, lambda **_: "seen")
    said = ["hello", call_answer(kind, ("c1", "look", {}), ("c2", "look", {})), "done", "streamed it is", "and on"]
    with provider(Script(kind, *said)) as server:
        organic = hitherto.record(client(kind, server, look, system_prompt="Be terse."), store)
        organic.chat("one")
        organic.chat([Block.text("what is it?"), Block.image(b"\x89PNG\r\n\x1a\n\x00", "image/png")])
        list(organic.stream("three"))
        talk = store.latest()
        assert talk is not None
        at = talk.at
        organic.chat("four")
        wanted = server.bodies[-1]
        assert [message.text for message in talk.thread() if message.role == "assistant"][-1] == "streamed it is"
    with provider(Script(kind, "and on")) as server:
        resumed = hitherto.resume(client(kind, server, look), store, at or "")
        resumed.chat("four")
        assert server.bodies == [wanted]
    talk = store.conversation(talk.id)
    assert len(talk.branches()) == 2  # both went on from there
    assert len(store.conversations().items) == 1
    assert store.verify().ok


@pytest.mark.parametrize("kind", KINDS)
def test_each_tool_result_is_kept_before_the_next_tool_runs(kind: str, store: Store) -> None:
    """C10."""
    seen: list[list[str]] = []

    def look(**_: object) -> str:
        seen.append(roles(store))
        return "seen"

    with provider(Script(kind, call_answer(kind, ("c1", "look", {}), ("c2", "look", {})), "done")) as server:
        recorded = hitherto.record(client(kind, server, Tool("look", handler=look)), store)
        assert recorded.chat("go") == "done"
    answer = [role for role in seen[0] if role == "assistant"]  # one, or one per item
    assert seen == [["user", *answer], ["user", *answer, "tool_result"]]
    assert roles(store) == ["user", *answer, "tool_result", "tool_result", "assistant"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("finished", [0, 1])
def test_calls_without_a_result_are_repaired_and_reported(kind: str, finished: int, store: Store) -> None:
    """A crash inside a tool, or between two: the results that are there stay, the missing ones are made up, say so, and
    are marked. The reasoning that belongs to the calls stays with them."""

    class Crash(BaseException):
        pass

    runs = 0

    def look(**_: object) -> str:
        nonlocal runs
        runs += 1
        if runs > finished:
            raise Crash
        return "seen"

    with provider(Script(kind, call_answer(kind, ("c1", "look", {}), ("c2", "look", {})), "went on")) as server:
        recorded = hitherto.record(client(kind, server, Tool("look", handler=look)), store)
        with pytest.raises(Crash):
            recorded.chat("go")
        talk = store.latest()
        assert talk is not None
        kept = talk.thread()
        assert [m.role for m in kept][-1] == ("tool_result" if finished else "assistant")
        resumed = hitherto.resume(client(kind, server), store, talk)
        report = hitherto.recording(resumed)
        assert report is not None
        assert report.resumed is not None
        assert [repair.kind for repair in report.resumed.repairs] == ["missing-result"] * (2 - finished)
        assert report.resumed.missing_handlers == ("look",)
        assert resumed.chat("go on") == "went on"
        _paired(kind, entries(server.bodies[-1]))
    thread = store.conversation(talk.id).thread()
    made_up = [m for m in thread if (m.extra or {}).get("synthetic")]
    assert len(made_up) == 2 - finished
    assert all(m.tool_result_error and "not known" in m.text for m in made_up)
    assert [m.raw for m in thread[: len(kept)]] == [m.raw for m in kept]  # what was kept stays as it was


def _paired(kind: str, sent: list[Json]) -> None:
    """Every call has its result right after it, and no reasoning stands alone."""
    if kind == "openai-compatible":
        assert [m["role"] for m in sent] == ["user", "assistant", "tool", "tool", "user"]
        assert [m["tool_call_id"] for m in sent if m["role"] == "tool"] == ["c1", "c2"]
    elif kind == "responses":
        kinds = [m.get("type", "message") for m in sent]
        outputs = ["function_call_output"] * 2
        assert kinds == ["message", "reasoning", "function_call", "function_call", *outputs, "message"]
        assert sent[1]["encrypted_content"] == "gAAAA"
    elif kind == "claude":
        assert [m["role"] for m in sent] == ["user", "assistant", "user", "user"]
        assert [b["tool_use_id"] for b in sent[2]["content"]] == ["c1", "c2"]
        assert sent[1]["content"][0] == {"type": "thinking", "thinking": "Let me look.", "signature": "c2ln"}
    else:
        assert [len(m["parts"]) for m in sent] == [1, 2, 2, 1]
        assert all("functionResponse" in part for part in sent[2]["parts"])
        assert all(part["thoughtSignature"] == "c2ln" for part in sent[1]["parts"])


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_question_is_offered_for_retry(kind: str, store: Store) -> None:
    """C11."""
    with provider(Script(kind, Reply({"error": {"message": "no"}}, status=500), "here I am")) as server:
        recorded = hitherto.record(client(kind, server), store)
        with pytest.raises(hitherto.ProviderError):
            recorded.chat("are you there?")
        talk = store.latest()
        assert talk is not None
        resumed = hitherto.resume(client(kind, server), store, talk)
        report = hitherto.recording(resumed)
        assert report is not None
        assert report.resumed is not None
        assert report.resumed.interrupted is not None
        assert report.resumed.interrupted.text == "are you there?"
        assert resumed.retry() == "here I am"
        assert len(entries(server.bodies[-1])) == 1
    assert [(m.role, m.text) for m in store.conversation(talk.id).thread()] == [
        ("user", "are you there?"),
        ("assistant", "here I am"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_partial_answer_is_offered_and_becomes_a_message_that_can_be_sent(kind: str, store: Store) -> None:
    """D4."""

    def cut() -> Reply:
        def stop() -> None:
            raise Cut

        events = text_events(kind, "half of this is lost")
        told = [event for event in events if any(word in str(event) for word in ("message_start", "_start", "added"))]
        words = [event for event in events if "half " in str(event) or "'of '" in str(event)][:2]
        return Reply(events=[*told, *words, stop])

    with provider(Script(kind, cut, "the rest")) as server:
        recorded = hitherto.record(client(kind, server), store)
        with pytest.raises(hitherto.ProviderError):
            list(recorded.stream("tell me"))
        talk = store.latest()
        assert talk is not None
        resumed = hitherto.resume(client(kind, server), store, talk)
        report = hitherto.recording(resumed)
        assert report is not None
        assert report.resumed is not None
        (partial,) = report.resumed.partials
        assert partial.text.startswith("half")
        talk.accept(partial)
        resumed = hitherto.resume(client(kind, server), store, talk)
        assert resumed.chat("go on") == "the rest"
        sent = entries(server.bodies[-1])
        assert len(sent) == 3
        assert "half" in str(sent[1])
    assert [(m.extra or {}).get("interrupted") for m in store.conversation(talk.id).thread()][1] is True


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("target", KINDS)
def test_another_providers_conversation_converts_on_request_and_says_what_is_lost(
    source: str, target: str, store: Store
) -> None:
    look = Tool("look", "Look.", {"type": "object", "properties": {}}, lambda **_: "seen")
    with provider(Script(source, call_answer(source, ("c1", "look", {"a": 1})), "done")) as server:
        hitherto.record(client(source, server, look, system_prompt="Be terse."), store).chat("go")
    talk = store.latest()
    assert talk is not None
    before = [m.raw for m in talk.thread()]
    with provider(Script(target, "went on")) as server:
        other = client(target, server, look)
        if source == target:
            resumed = hitherto.resume(other, store, talk, convert=True)
        else:
            with pytest.raises(hitherto.ProviderMismatch) as refused:
                hitherto.resume(other, store, talk)
            assert refused.value.expected != refused.value.found
            assert other.messages == []  # nothing was touched
            resumed = hitherto.resume(other, store, talk, convert=True)
        report = hitherto.recording(resumed)
        assert report is not None
        assert report.resumed is not None
        thoughts = source != target and source in ("claude", "responses")
        assert bool(report.resumed.losses) == thoughts
        assert all("thought" in loss for loss in report.resumed.losses)
        assert resumed.chat("go on") == "went on"
        body = server.bodies[-1]
        assert "Be terse." in str(body)
        assert str(body).count("Be terse.") == 1
        assert "seen" in str(body)
        assert "look" in str(body)
    talk = store.conversation(talk.id)
    assert [m.raw for m in talk.thread()][: len(before)] == before  # what was kept stays as it was
    assert talk.thread()[-1].text == "went on"
    assert talk.setups()[-1].setup.provider == resumed.provider


def test_a_fork_resumes_with_what_was_in_force_there(store: Store) -> None:
    with provider(Script("openai-compatible", "a", "b", "c")) as server:
        recorded = hitherto.record(client("openai-compatible", server, system_prompt="First."), store)
        recorded.chat("one")
        first = store.latest()
        assert first is not None
        at = first.at
        recorded.set_system_prompt("Second.")
        recorded.chat("two")
        assert [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "system"] == ["Second."]
        resumed = hitherto.resume(client("openai-compatible", server, system_prompt="Other."), store, at or "")
        resumed.chat("three")
        assert [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "system"] == ["First."]
    talk = store.latest()
    assert talk is not None
    assert talk.system_prompt == "First."


def test_an_empty_system_prompt_clears_the_old_one(store: Store) -> None:
    """A3."""
    with provider(Script("openai-compatible", "a", "b")) as server:
        hitherto.record(client("openai-compatible", server), store).chat("one")
        talk = store.latest()
        assert talk is not None
        resumed = hitherto.resume(client("openai-compatible", server, system_prompt="Other."), store, talk)
        resumed.chat("two")
        assert [m["role"] for m in server.bodies[-1]["messages"]] == ["user", "assistant", "user"]


def test_a_conversation_that_was_written_by_hand_can_be_resumed(store: Store) -> None:
    talk = store.start(title="By hand", system_prompt="Be terse.")
    talk.extend([Message.user("Hello"), Message.assistant("Hi")])
    with provider(Script("claude", "went on")) as server:
        resumed = hitherto.resume(client("claude", server), store, talk)
        resumed.chat("And?")
        assert [m["role"] for m in server.bodies[0]["messages"]] == ["user", "assistant", "user"]
        assert server.bodies[0]["system"] == "Be terse."
    assert [m.text for m in store.conversation(talk.id).thread()] == ["Hello", "Hi", "And?", "went on"]


def test_compaction_in_a_chat_goes_on_from_the_summary_and_keeps_the_old_branch(store: Store) -> None:
    """C18, and B2 after it."""
    kind = "openai-compatible"
    with provider(Script(kind, "a", "b", "what was said", "c", "d")) as server:
        recorded = hitherto.record(client(kind, server, system_prompt="Be terse."), store)
        recorded.chat("one")
        recorded.chat("two")
        assert recorded.compact() == "what was said"
        recorded.chat("three")
        sent = server.bodies[-1]["messages"]
        assert [m["content"] for m in sent] == ["Be terse.", "what was said", "three"]
        talk = store.latest()
        assert talk is not None
        assert [m.text for m in talk.thread()] == ["what was said", "three", "c"]
        assert [m.text for m in talk.thread(full=True)] == ["one", "a", "two", "b", "what was said", "three", "c"]
        resumed = hitherto.resume(client(kind, server), store, talk)
        resumed.chat("four")
        assert [m["content"] for m in server.bodies[-1]["messages"]] == [
            "Be terse.", "what was said", "three", "c", "four",
        ]  # fmt: skip


def test_a_sub_agents_trace_is_a_root_of_its_own_linked_to_the_call(store: Store) -> None:
    """C12."""
    kind = "openai-compatible"

    def research(**_: object) -> str:
        with provider(Script(kind, "found", "more")) as inner:
            agent = hitherto.record(client(kind, inner), store, subagent="researcher")
            agent.chat("go")  # the same words as the user's: it is another flow all the same
            return agent.chat("go on")

    with provider(Script(kind, call_answer(kind, ("c1", "research", {})), "done", "again")) as server:
        recorded = hitherto.record(client(kind, server, Tool("research", handler=research)), store)
        recorded.chat("go")
        talk = store.latest()
        assert talk is not None
        assert [m.role for m in talk.thread()] == ["user", "assistant", "tool_result", "assistant"]
        trace = list(store.messages(subagent="researcher", newest_first=False))
        assert [m.text for m in trace] == ["go", "found", "go on", "more"]
        assert trace[0].parent is None
        assert trace[0].link == talk.thread()[1].id
        assert len({m.label for m in trace}) == 1
        assert (trace[0].label or "").startswith("subagent:researcher:")
        assert not any(m.main for m in trace)
        recorded.chat("more")  # and the main flow goes on where it was
        assert len(entries(server.bodies[-1])) == 5
    assert store.verify().ok


def test_a_sub_agent_that_nobody_started_is_refused(store: Store) -> None:
    with provider(Script("claude")) as server, pytest.raises(hitherto.InvalidArgument, match="started"):
        hitherto.record(client("claude", server), store, subagent="researcher")


def test_two_sessions_on_one_conversation_make_branches_and_lose_nothing(store: Store) -> None:
    kind = "openai-compatible"
    with provider(Script(kind, "a", "b", "c", "d", "e")) as server:
        hitherto.record(client(kind, server), store).chat("zero")
        talk = store.latest()
        assert talk is not None
        one = hitherto.resume(client(kind, server), store, talk.id)
        two = hitherto.resume(client(kind, server), store, talk.id)
        for n in range(2):
            one.chat(f"one {n}")
            two.chat(f"two {n}")
    talk = store.conversation(talk.id)
    assert talk.count == 10
    assert len(talk.branches()) == 2
    threads = {
        tuple(m.text for m in talk.fork(at=branch.id).thread() if m.role == "user") for branch in talk.branches()
    }
    assert threads == {("zero", "one 0", "one 1"), ("zero", "two 0", "two 1")}


def test_restoring_a_snapshot_into_a_recorded_client_finds_its_place_again(store: Store) -> None:
    kind = "claude"
    with provider(Script(kind, "a", "b", "c")) as server:
        recorded = hitherto.record(client(kind, server), store)
        recorded.chat("one")
        snapshot = recorded.save()
        recorded.chat("two")
        recorded.restore(snapshot)
        recorded.chat("another two")
    talk = store.latest()
    assert talk is not None
    assert [m.text for m in talk.thread()] == ["one", "a", "another two", "c"]
    assert talk.count == 6


def test_a_full_disk_stops_the_chat_before_the_model_and_nothing_is_said_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, full = store.backend.commit, True

    def checked(batches: Any) -> Any:
        if full:
            raise StorageFull("no space is left")
        return commit(batches)

    monkeypatch.setattr(store.backend, "commit", checked)
    with provider(Script("claude", "a")) as server:
        recorded = hitherto.record(client("claude", server), store)
        with pytest.raises(StorageFull):
            recorded.chat("one")
        assert server.asked == []
        assert recorded.messages == []
        full = False
        recorded.chat("one")
    assert roles(store) == ["user", "assistant"]


@pytest.mark.parametrize("kind", KINDS)
def test_awaited_it_is_the_same(kind: str, store: Store) -> None:
    async def look(**_: object) -> str:
        await asyncio.sleep(0)
        return "seen"

    async def main(server: Provider) -> None:
        async with new_async_client(config(kind, server.url, system_prompt="Be terse.")) as made:
            assert isinstance(made, AsyncClient)
            made.set_tools([Tool("look", handler=look)])
            recorded = hitherto.record(made, store)
            assert await recorded.chat("go") == "done"
            assert "".join([piece async for piece in recorded.stream("more")]) == "streamed it is"
        talk = store.latest()
        assert talk is not None
        async with new_async_client(config(kind, server.url)) as again:
            assert await hitherto.resume(again, store, talk).chat("and?") == "went on"

    said = [call_answer(kind, ("c1", "look", {})), "done", "streamed it is", "went on"]
    with provider(Script(kind, *said)) as server:
        asyncio.run(main(server))
    found = [role for role in roles(store) if role != "assistant"]
    assert found == ["user", "tool_result", "user", "user"]
    assert store.verify().ok


def test_a_task_that_is_cancelled_keeps_what_came(store: Store) -> None:
    async def main(server: Provider) -> None:
        async with new_async_client(config("claude", server.url)) as made:
            recorded = hitherto.record(made, store)

            async def read() -> None:
                async for piece in recorded.stream("tell me"):
                    if piece == "two ":
                        came.set()

            came = asyncio.Event()
            task = asyncio.create_task(read())
            await came.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release.set()

    import threading

    release = threading.Event()
    events = anthropic_events("one two three")
    held = Reply(events=[*events[:4], lambda: release.wait(30) and None, *events[4:]])
    with provider(lambda _: held) as server:
        asyncio.run(main(server))
    talk = store.latest()
    assert talk is not None
    assert roles(store) == ["user"]
    assert [partial.text for partial in talk.partials()] == ["one two "]


def test_nothing_is_resumed_that_is_not_there(store: Store) -> None:
    with provider(Script("claude")) as server:
        with pytest.raises(hitherto.NotFound):
            hitherto.resume(client("claude", server), store, "00000000-0000-4000-8000-000000000000")
        with pytest.raises(hitherto.InvalidID):
            hitherto.resume(client("claude", server), store, "../../etc/passwd")


def test_a_client_of_ours_is_not_talked_into_another_conversation(store: Store) -> None:
    """It has one; whoever says that it is another gets an error, not somebody else's history."""
    with provider(Script("claude", "a", "b")) as server:
        recorded = hitherto.record(client("claude", server), store)
        with hitherto.into(store.ensure("ann")):
            recorded.chat("one")
        with hitherto.into(store.ensure("bob")), pytest.raises(hitherto.InvalidArgument, match="another conversation"):
            recorded.chat("two")
        recorded.chat("three")
    assert [m.text for m in store.ensure("ann").thread()] == ["one", "a", "three", "b"]
    assert store.ensure("bob").thread() == []


def test_a_summary_that_says_nothing_is_refused_and_the_history_stays(store: Store) -> None:
    kind = "claude"
    with provider(Script(kind, "a", call_answer(kind, ("c1", "look", {})), "b")) as server:
        recorded = hitherto.record(client(kind, server, Tool("look", handler=lambda: "seen")), store)
        recorded.chat("one")
        with pytest.raises(hitherto.ProviderError, match="summary"):
            recorded.compact()
        recorded.chat("two")
        assert len(entries(server.bodies[-1])) == 3
        assert recorded.usage.output_tokens == 6
    assert len(store.conversations().items) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_came_of_an_answer_is_still_offered_after_another_question(kind: str, store: Store) -> None:
    """It stays where it belongs until somebody decides, whatever is said next; and goes with its own answer."""
    with provider(Script(kind, "one two three", "next", "one two three", "again")) as server:
        recorded = hitherto.record(client(kind, server), store)
        pieces = recorded.stream("first")
        next(pieces)
        pieces.close()
        talk = store.latest()
        assert talk is not None
        (partial,) = talk.partials()
        recorded.chat("second")
        assert talk.partials() == [partial]
        talk.discard(partial)
        pieces = recorded.stream("third")
        next(pieces)
        pieces.close()
        assert len(talk.partials()) == 1
        assert recorded.retry() == "again"
        assert talk.partials() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_can_be_taken_back(kind: str, store: Store) -> None:
    """After one that the provider will never take, say; in the store it stays, on a branch."""
    refused = Reply({"error": {"message": "no images", "type": "t", "code": 400}}, status=400)
    with provider(Script(kind, "a", refused, "b")) as server:
        recorded = hitherto.record(client(kind, server), store)
        recorded.chat("one")
        with pytest.raises(hitherto.ProviderError) as caught:
            recorded.chat("never")
        assert "undo" in (caught.value.hint or "")
        assert [m.text for m in recorded.undo()] == ["never"]
        recorded.chat("two")
        assert "never" not in str(server.bodies[-1])
        assert len(entries(server.bodies[-1])) == 3
        recorded.undo()
        recorded.undo()
        with pytest.raises(hitherto.InvalidArgument):
            recorded.undo()
    talk = store.latest()
    assert talk is not None
    assert [m.text for m in talk.thread()] == ["one", "a", "two", "b"]
    assert len(talk.branches()) == 2


def test_an_sdk_client_is_not_resumed_with_what_its_provider_cannot_read(store: Store) -> None:
    import openai

    with provider(Script("claude", "a")) as server:
        hitherto.record(client("claude", server), store).chat("one")
    talk = store.latest()
    assert talk is not None
    with (
        provider(Script("openai-compatible", "b")) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="k") as sdk,
    ):
        with pytest.raises(hitherto.ProviderMismatch):
            hitherto.resume(sdk, store, talk)
        assert not hitherto.recorder.is_recorded(sdk)
        hitherto.resume(sdk, store, talk, convert=True)
        said: Any = [*hitherto.history(talk, "openai"), {"role": "user", "content": "two"}]
        sdk.chat.completions.create(model="m", messages=said)
    assert [m.text for m in store.conversation(talk.id).thread()] == ["one", "a", "two", "b"]
    assert len(list(store.messages())) == 4


def test_a_closed_client_says_so(store: Store) -> None:
    with provider(Script("claude", "a")) as server:
        made = client("claude", server)
        made.chat("one")
        made.close()
        with pytest.raises(hitherto.ChatError, match="closed"):
            made.chat("two")
        assert len(made.save().messages or ()) == 2


@pytest.mark.parametrize("at", range(4))
def test_ctrl_c_between_a_commit_and_our_noting_it_writes_nothing_twice(
    at: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question, the answer that calls a tool, its result, the last answer: each was kept, and Ctrl+C came before
    its note."""
    kind = "openai-compatible"
    note_written, notes = RecordedConversation.note_written, 0

    def interrupted(recorded: RecordedConversation, *args: Any) -> None:
        nonlocal notes
        notes += 1
        if notes == at + 1:
            raise KeyboardInterrupt
        note_written(recorded, *args)

    monkeypatch.setattr(RecordedConversation, "note_written", interrupted)
    with provider(Script(kind, call_answer(kind, ("c1", "look", {})), "done", "went on", "went on")) as server:
        recorded = hitherto.record(client(kind, server, Tool("look", handler=lambda: "seen")), store)
        with pytest.raises(KeyboardInterrupt):
            recorded.chat("one")
        recorded.chat("two")
        sent = [str(entry) for entry in entries(server.bodies[-1])]
        assert len(sent) == len(set(sent))
    talk = store.latest()
    assert talk is not None
    kept = [(m.role, m.text, str(m.raw)) for m in talk.thread()]
    assert len(kept) == len(set(kept))
    assert len(talk.thread()) >= len(entries(server.bodies[-1]))
    assert [m for m in talk.thread() if m.role == "assistant"][-1].text in ("went on", "done")


def test_an_abandoned_awaited_stream_leaves_its_part_under_its_own_question(store: Store) -> None:
    async def main(server: Provider) -> None:
        async with new_async_client(config("claude", server.url)) as made:
            assert isinstance(made, AsyncClient)
            recorded = hitherto.record(made, store)
            stream = recorded.stream("q1")
            await anext(stream)
            del stream
            assert "".join([piece async for piece in recorded.stream("q2")]) == "four five"

    with provider(Script("claude", "one two three", "four five")) as server:
        asyncio.run(main(server))
    talk = store.latest()
    assert talk is not None
    assert [m.text for m in talk.thread()] == ["q1", "q2", "four five"]
    assert [partial.parent for partial in talk.partials()] == [talk.thread()[0].id]
