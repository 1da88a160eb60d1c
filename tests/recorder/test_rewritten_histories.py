"""Histories as clients really send them back: with ids and names of their own, without thoughts, in other pieces.

Each session speaks real HTTP through the real SDKs to a provider on loopback. It must come out as one thread without a
second copy of anything; a history that says something else must not. Requirements: C10, C18, C12.
"""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from anthropic import beta_tool
from google import genai
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

import hitherto
from hitherto import Store
from hitherto.dialects import dialect
from hitherto.dialects._canonical import Likeness, agree

from ..support.provider import Asked, Provider, Reply, anthropic_answer, chat_answer, provider, responses_answer

Json = Any


def say(name: str, server: Provider, store: Store, histories: list[list[Json]]) -> None:
    """Send these histories, one request each, through the SDK that speaks this dialect."""
    if name == "gemini":
        with genai.Client(api_key="k", http_options={"base_url": server.url}) as gemini:
            hitherto.record(gemini, store)
            for history in histories:
                options = types.HttpOptions(extra_body={"contents": history})
                config = types.GenerateContentConfig(http_options=options)
                gemini.models.generate_content(model="m", contents="-", config=config)
        return
    path, field = {
        "anthropic": ("/v1/messages", "messages"),
        "openai-chat": ("/chat/completions", "messages"),
        "openai-responses": ("/responses", "input"),
    }[name]
    sdk: Any
    if name == "anthropic":
        sdk = anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0)
    else:
        sdk = openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)
    with sdk:
        hitherto.record(sdk, store)
        for history in histories:
            sdk.post(path, body={"model": "m", "max_tokens": 9, field: history}, cast_to=object)


def gemini_body(*parts: Json) -> Json:
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m"}


def anthropic_body(*content: Json) -> Json:
    return {**anthropic_answer("-"), "content": list(content)}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk"}
ITEM_CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "now", "arguments": "{}"}
ITEM_RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "noon"}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"query": "q", "sources": ["s"]}}
MESSAGE_CALL = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
TOOL_RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"}]}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
Q = {"role": "user", "parts": [{"text": "q"}]}


def response(**more: Json) -> Json:
    return {"role": "user", "parts": [{"functionResponse": {"name": "now", "response": {"result": "noon"}, **more}}]}


# An answer, and the history that a client makes of it: its words for the answer, then what comes next.
REWRITTEN: dict[str, tuple[str, Json, list[Json]]] = {
    "an id for a call that has none": (
        "gemini",
        gemini_body({"functionCall": {"name": "now", "args": {}}}),
        [
            Q,
            {"role": "model", "parts": [{"functionCall": {"name": "now", "args": {}, "id": "made_1"}}]},
            response(id="made_1"),
        ],
    ),
    "the other alphabet of base64": (
        "gemini",
        gemini_body({"text": "a", "thoughtSignature": "+/+/"}),
        [Q, {"role": "model", "parts": [{"text": "a", "thought_signature": "-_-_"}]}, Q],
    ),
    "no thoughts": (
        "gemini",
        gemini_body({"text": "hm", "thought": True}, {"text": "a"}),
        [Q, {"role": "model", "parts": [{"text": "a"}]}, Q],
    ),
    "a name": (
        "openai-chat",
        chat_answer("a"),
        [user("q"), {"role": "assistant", "content": "a", "name": "agent"}, user("r")],
    ),
    "a name beside calls": (
        "openai-chat",
        chat_answer(None, calls=[("call_1", "now", {})]),
        [
            user("q"),
            {"role": "assistant", "name": "agent", "tool_calls": [MESSAGE_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "noon", "name": "now"},
        ],
    ),
    "thoughts in tags": (
        "openai-chat",
        chat_answer("a", reasoning_content="hm"),
        [user("q"), {"role": "assistant", "content": "<think>\nhm\n</think>\n\na"}, user("r")],
    ),
    "an empty message before a call": (
        "openai-responses",
        responses_answer([ITEM_CALL]),
        [user("q"), {"role": "assistant", "content": ""}, ITEM_CALL, ITEM_RESULT],
    ),
    "no thought before a call": (
        "openai-responses",
        responses_answer([THOUGHT, ITEM_CALL]),
        [user("q"), {k: v for k, v in ITEM_CALL.items() if k != "id"}, ITEM_RESULT],
    ),
    "a search without its sources": (
        "openai-responses",
        responses_answer([SEARCH, ITEM_CALL]),
        [user("q"), {**SEARCH, "action": {"query": "q"}}, {**ITEM_CALL, "namespace": "n"}, ITEM_RESULT],
    ),
    "a thought that is sealed anew": (
        "openai-responses",
        responses_answer([THOUGHT, ITEM_CALL]),
        [user("q"), {**THOUGHT, "encrypted_content": "YW5ldw"}, ITEM_CALL, ITEM_RESULT],
    ),
    "a thought that is sealed anew, without its id": (
        "openai-responses",
        responses_answer([THOUGHT, ITEM_CALL]),
        [
            user("q"),
            {"type": "reasoning", "summary": [], "encrypted_content": "YW5ldw"},
            {k: v for k, v in ITEM_CALL.items() if k != "id"},
            ITEM_RESULT,
        ],
    ),
    "no search": (
        "openai-responses",
        responses_answer([THOUGHT, SEARCH, ITEM_CALL]),
        [user("q"), THOUGHT, ITEM_CALL, ITEM_RESULT],
    ),
    "no thinking": (
        "anthropic",
        anthropic_body(THINKING, TOOL_USE),
        [user("q"), {"role": "assistant", "content": [TOOL_USE]}, TOOL_RESULT],
    ),
    "texts joined, citations gone": (
        "anthropic",
        anthropic_body({"type": "text", "text": "a "}, {"type": "text", "text": "b", "citations": [{"type": "x"}]}),
        [user("q"), {"role": "assistant", "content": "a b"}, user("r")],
    ),
}


@pytest.mark.parametrize("what", REWRITTEN)
def test_a_history_in_a_clients_own_words_is_the_same_thread(what: str, store: Store) -> None:
    name, answer, history = REWRITTEN[what]
    with provider(lambda _: answer) as server:
        say(name, server, store, [history[:1], history])
    (info,) = store.conversations()
    talk = store.conversation(info.id)
    assert len(talk.branches()) == 1
    answered = len(dialect(name).answer(answer).messages)
    assert [message.role for message in talk.thread()].count("assistant") == 2 * answered
    assert talk.usage().input_tokens == 10


def other(value: Json) -> Json:
    """The same words with others in their place, wherever text of the model stands."""
    if isinstance(value, dict):
        return {k: "else" if k in ("text", "name", "code") and v != "agent" else other(v) for k, v in value.items()}
    return [other(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("what", REWRITTEN)
def test_a_history_with_another_answer_is_a_branch(what: str, store: Store) -> None:
    """The control: what says something else is not taken for the same."""
    name, answer, history = REWRITTEN[what]
    changed = [history[0], *(other(entry) for entry in history[1:-1]), history[-1]]
    for entry in changed:
        if entry.get("role") == "assistant" and isinstance(entry.get("content"), str) and entry["content"]:
            entry["content"] = "else"
    with provider(lambda _: answer) as server:
        say(name, server, store, [history[:1], changed])
    branches = sum(len(store.conversation(info.id).branches()) for info in store.conversations())
    assert branches == 2


@pytest.mark.parametrize("what", REWRITTEN)
def test_without_the_marks_and_the_silence_a_session_falls_apart(
    what: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: entries compared as JSON fork, whatever the client changes."""
    name, answer, history = REWRITTEN[what]
    kind = type(dialect(name))

    def as_json(self: object, raw: Json) -> Likeness:
        return Likeness("user", (json.dumps(raw, sort_keys=True),))

    monkeypatch.setattr(kind, "likeness", as_json)
    with provider(lambda _: answer) as server:
        say(name, server, store, [history[:1], history])
    assert sum(len(store.conversation(info.id).branches()) for info in store.conversations()) > 1


def test_a_thread_that_anthropic_holds_is_one_conversation_with_its_tools_and_prompt(store: Store) -> None:
    """The tool runner of Anthropic's SDK sends only what is new, and names the answer that it goes on from."""

    def answer(asked: Asked) -> Json:
        if len(server.asked) == 1:
            return {**anthropic_body(TOOL_USE), "id": "msg_1", "stop_reason": "tool_use"}
        return {**anthropic_body({"type": "text", "text": "It is noon."}), "id": "msg_2"}

    @beta_tool
    def now() -> str:
        """The time."""
        return "noon"

    with provider(answer) as server, anthropic.Anthropic(base_url=server.url, api_key="k", max_retries=0) as sdk:
        hitherto.record(sdk, store)
        runner = sdk.beta.messages.tool_runner(
            model="m", max_tokens=9, system="Be brief.", tools=[now], messages=[{"role": "user", "content": "time?"}]
        )
        list(runner)
    assert server.bodies[1]["thread"] == {"type": "continue", "previous_message_id": "msg_1"}
    assert "system" not in server.bodies[1]
    (info,) = store.conversations()
    talk = store.conversation(info.id)
    assert [message.role for message in talk.thread()] == ["user", "assistant", "tool_result", "assistant"]
    assert (talk.setup.system_prompt, len(talk.setup.tools), len(talk.setups())) == ("Be brief.", 1, 1)
    assert talk.usage().input_tokens == 10


# -- likeness, for anything


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
values = st.dictionaries(words, st.one_of(words, st.integers(-9, 9), st.booleans(), st.none()), max_size=3)


@given(words, values, words, values)
def test_calls_are_alike_if_and_only_if_name_and_arguments_are(
    name: str, arguments: Json, other_name: str, other_arguments: Json
) -> None:
    def entries(name: str, arguments: Json, id: str) -> list[tuple[str, Json]]:
        written = json.dumps(arguments)
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": written}}
        return [
            ("openai-chat", {"role": "assistant", "tool_calls": [call]}),
            ("openai-responses", {"type": "function_call", "call_id": id, "name": name, "arguments": written}),
            (
                "anthropic",
                {"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": name, "input": arguments}]},
            ),
            ("gemini", {"role": "model", "parts": [{"functionCall": {"id": id, "name": name, "args": arguments}}]}),
        ]

    same = (name, json.dumps(arguments, sort_keys=True)) == (other_name, json.dumps(other_arguments, sort_keys=True))
    for (kind, one), (_, two), (_, three) in zip(
        entries(name, arguments, "a"),
        entries(other_name, other_arguments, "a"),
        entries(name, arguments, "b"),
        strict=True,
    ):
        like = dialect(kind).likeness
        assert like(one).fits(like(two)) == same
        assert not like(one).fits(like(three))  # another id is another call


@given(words, words)
def test_texts_of_a_user_are_alike_if_and_only_if_they_are_equal(one: str, other: str) -> None:
    entries: list[tuple[str, Callable[[str], Json]]] = [
        ("openai-chat", lambda text: {"role": "user", "content": text}),
        ("openai-responses", lambda text: {"role": "user", "content": [{"type": "input_text", "text": text}]}),
        ("anthropic", lambda text: {"role": "user", "content": [{"type": "text", "text": text}]}),
        ("gemini", lambda text: {"role": "user", "parts": [{"text": text}]}),
    ]
    for kind, entry in entries:
        like = dialect(kind).likeness
        assert like(entry(one)).fits(like(entry(other))) == (one == other)
        assert like(entry(one)).fits(like(entry(one)))


@given(words, words)
def test_texts_of_a_model_are_alike_if_and_only_if_they_are_equal_but_for_blanks(one: str, other: str) -> None:
    entries: list[tuple[str, Callable[[str], Json]]] = [
        ("openai-chat", lambda text: {"role": "assistant", "content": text}),
        ("openai-responses", lambda text: {"role": "assistant", "content": [{"type": "output_text", "text": text}]}),
        ("anthropic", lambda text: {"role": "assistant", "content": [{"type": "text", "text": text}]}),
        ("gemini", lambda text: {"role": "model", "parts": [{"text": text}]}),
    ]
    for kind, entry in entries:
        like = dialect(kind).likeness
        assert like(entry(one)).fits(like(entry(other))) == (one.strip() == other.strip())


marks = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 1)), st.frozensets(st.binary(max_size=1), min_size=1), max_size=3
)


@given(marks, marks)
def test_marks_agree_both_ways_with_themselves_and_with_none(one: Json, other: Json) -> None:
    assert agree(one, other) == agree(other, one)
    assert agree(one, one)
    assert agree(one, {})


def test_two_results_that_change_places_are_another_message() -> None:
    like = dialect("gemini").likeness

    def results(*ids: str) -> Json:
        parts = [{"functionResponse": {"id": id, "name": "f", "response": {"result": n}}} for n, id in enumerate(ids)]
        return {"role": "user", "parts": parts}

    assert like(results("a", "b")).fits(like(results("a", "b")))
    assert not like(results("a", "b")).fits(like(results("b", "a")))


def test_an_answer_that_was_made_twice_keeps_both_apart(store: Store) -> None:
    """Two pictures for the same question: what follows the second goes below the second, though neither says a word."""
    pictures = [{"type": "image_generation_call", "id": f"ig_{n}", "status": "completed", "result": ""} for n in (1, 2)]
    answers = [pictures[0], {**ITEM_CALL}, pictures[1], {**ITEM_CALL, "call_id": "call_2"}]
    with provider(lambda _: responses_answer([answers[len(server.asked) - 1]])) as server:
        first, second = ([user("draw"), picture, user("in blue")] for picture in pictures)
        say("openai-responses", server, store, [first[:1], first, first[:1], second])
    threads = [store.conversation(info.id).thread() for info in store.conversations()]
    entries = [[json.loads(json.dumps(message.raw)) for message in thread] for thread in threads]
    found = {tuple(entry.get("id") for entry in thread): thread[-1]["call_id"] for thread in entries}
    assert found == {(None, "ig_1", None, "fc_1"): "call_1", (None, "ig_2", None, "fc_1"): "call_2"}
    assert all(len(store.conversation(info.id).branches()) == 1 for info in store.conversations())


def test_a_single_tool_that_is_no_list_is_heard(store: Store) -> None:
    tool = {"functionDeclarations": [{"name": "now"}]}
    with (
        provider(lambda _: Reply(gemini_body({"text": "a"}))) as server,
        genai.Client(api_key="k", http_options={"base_url": server.url}) as sdk,
    ):
        hitherto.record(sdk, store)
        options = types.HttpOptions(extra_body={"contents": [Q], "tools": tool})
        sdk.models.generate_content(model="m", contents="-", config=types.GenerateContentConfig(http_options=options))
    talk = store.latest()
    assert talk is not None
    assert talk.setup.tools == (tool,)
