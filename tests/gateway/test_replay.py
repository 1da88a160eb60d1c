"""Kept answers in place of a provider's: for the SDKs, for programs, and for tests. Requirement: G1."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Message, Store
from hitherto.testing.replay import replay, serve_replay  # noqa: F401  # a fixture

from ..support.command import PATIENCE, environment
from ..support.provider import anthropic_answer, chat_answer, responses_answer, responses_text
from .running import ask
from .scripted import CHATS, Scripted, as_events, running


def keep(store: Store, upstream: Scripted, name: str, streamed: bool) -> Any:
    """Keep the chat of a dialect, and return the path and the body of its request."""
    path, body, answer, events = CHATS[name]
    if streamed:
        path = path.replace(":generateContent?", ":streamGenerateContent?alt=sse&")
        upstream.stream(*as_events(events))
    else:
        upstream.say(answer)
    body = {**body, "stream": streamed} if name != "gemini" else body
    with running(store, upstream) as one:
        assert one.ask(path, body).status == 200
    talk = store.latest()
    assert talk is not None
    return path, body, talk


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", CHATS)
def test_a_kept_answer_is_served_and_reads_as_it_was(
    store: Store, upstream: Scripted, name: str, streamed: bool
) -> None:
    path, body, talk = keep(store, upstream, name, streamed)
    with serve_replay(talk) as found:
        address = found.anthropic.removesuffix("/anthropic")
        again = ask(address + path, body)
        assert again.status == 200
        wanted = "text/event-stream" if streamed else "application/json"
        assert dict(again.headers)["content-type"] == wanted
        assert found.misses == []
        assert ask(address + path, {**body, "model": "m"}).status == 200  # the last answer goes on
    # What was served is kept as the answer was: the recorder reads both the same.
    with hitherto.open("memory:") as other:
        if streamed:
            upstream.stream(again.body)
        else:
            upstream.say(again.json)
        with running(other, upstream) as one:
            one.ask(path, body)
        (first, second) = ([m for m in s.messages() if m.role == "assistant"] for s in (store, other))
        assert [(m.text, m.raw, m.usage) for m in first] == [(m.text, m.raw, m.usage) for m in second]


def test_real_sdks_read_what_is_replayed(store: Store, upstream: Scripted, replay: Any) -> None:  # noqa: F811  # the fixture
    import anthropic
    import openai

    keep(store, upstream, "anthropic", True)
    with replay(store.latest()):
        client = anthropic.Anthropic(api_key="none", max_retries=0)
        with client.messages.stream(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]) as stream:
            assert stream.get_final_text() == "hello there"
    keep(store, upstream, "openai-responses", False)
    with replay(store.latest()):
        sdk = openai.OpenAI(api_key="none", max_retries=0)
        assert sdk.responses.create(model="m", input="hi").output_text == "hello there"
        with sdk.responses.stream(model="m", input="hi") as events:
            assert events.get_final_response().output_text == "hello there"
    keep(store, upstream, "openai-chat", True)
    with replay(store.latest()):
        sdk = openai.OpenAI(api_key="none", max_retries=0)
        said = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in said if c.choices) == "hello there"


def test_calls_of_tools_come_back_with_their_ids(store: Store, upstream: Scripted) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}}
    upstream.say(anthropic_answer("let me look", call, stop="tool_use"))
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "look"}]}
    with running(store, upstream) as one:
        one.ask("/anthropic/v1/messages", body)
    talk = store.latest()
    assert talk is not None
    with serve_replay(talk) as found:
        again = ask(found.anthropic + "/v1/messages", body).json
    assert again["stop_reason"] == "tool_use"
    assert again["content"] == anthropic_answer("let me look", call)["content"]


def test_several_answers_to_one_question_are_served_one_after_the_other(store: Store, upstream: Scripted) -> None:
    path, body, talk = keep(store, upstream, "openai-chat", False)
    question = talk.thread()[0].id
    raw = {"role": "assistant", "content": "another"}
    talk.fork(at=question).append(Message.assistant("another", raw=raw, extra={"dialect": "openai-chat"}))
    with serve_replay(talk) as found:
        said = [
            ask(found.openai.removesuffix("/openai/v1") + path, body).json["choices"][0]["message"]["content"]
            for _ in range(3)
        ]
    assert said == ["hello there", "another", "another"]


def differing(messages: Any, **more: Any) -> Any:
    return {"model": "m", "max_tokens": 5, "messages": messages, **more}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (differing([{"role": "user", "content": "hi you"}]), "message 1 of 1 (user) was not kept: kept 'hi', asked"),
        (differing([{"role": "user", "content": "hi"}], system="Be terse."), "the system prompt differs"),
        (
            differing([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}]),
            "message 2 of 2 (assistant) was not kept: kept 'hello there'",
        ),
        (
            differing([{"role": "user", "content": c} for c in ("hi", "more")]),
            "nothing of that role follows there; asked: 'more'",
        ),
        (b"no JSON", "no JSON object"),
    ],
)
def test_a_request_that_differs_misses_loudly(store: Store, upstream: Scripted, body: Any, said: str) -> None:
    _, _, talk = keep(store, upstream, "anthropic", False)
    with serve_replay(talk) as found:
        got = ask(found.anthropic + "/v1/messages", body)
        assert got.status == 400
        assert said in got.json["error"]["message"]
        assert len(found.misses) == 1


def test_dates_are_ignored_and_what_is_named(store: Store, upstream: Scripted) -> None:
    upstream.say(anthropic_answer("fine"))
    body = {"model": "m", "max_tokens": 5, "system": "It is 10:31.", "messages": [
        {"role": "user", "content": "Today's date is 2026-01-31. How are you?"}]}  # fmt: skip
    with running(store, upstream) as one:
        one.ask("/anthropic/v1/messages", body)
    talk = store.latest()
    assert talk is not None
    body["messages"][0]["content"] = "Today's date is 2027-02-28. How are you?"  # type: ignore[index]  # a list
    body["system"] = "It is 22:05."
    for ignore, status in ((["[0-9]{2}:[0-9]{2}"], 200), ([], 400)):
        with serve_replay(talk, ignore=ignore) as found:
            assert ask(found.anthropic + "/v1/messages", body).status == status


def test_the_command_runs_a_program_without_a_network(store: Store, upstream: Scripted, tmp_path: Path) -> None:
    _, _, talk = keep(store, upstream, "anthropic", False)
    script = """
import json, os, sys, urllib.request, urllib.error
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": sys.argv[1]}]}).encode()
request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body)
try:
    print(json.load(urllib.request.urlopen(request))["content"][0]["text"])
except urllib.error.HTTPError as error:
    print(error.code)
"""
    seen = len(upstream.seen)
    env = environment() | {"HITHERTO_STORE": str(tmp_path / "chats.db"), "HOME": str(tmp_path)}
    for asked, printed, code in (("hi", "hello there", 0), ("ho", "400", 1)):
        command = [sys.executable, "-m", "hitherto", "replay", talk.id, "--", sys.executable, "-c", script, asked]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)
        assert (done.stdout.strip(), done.returncode) == (printed, code), done.stderr
        assert ("message 1 of 1" in done.stderr) == bool(code)
    assert len(upstream.seen) == seen


def test_what_was_kept_of_another_dialect_is_answered_in_the_one_that_is_asked(
    store: Store, upstream: Scripted
) -> None:
    talk = store.start()
    talk.extend([Message.user("hi"), Message.assistant("hello there")])
    with serve_replay(talk) as found:
        for name, (path, body, _, _) in CHATS.items():
            got = ask(found.anthropic.removesuffix("/anthropic") + path, body)
            assert (got.status, b"hello there" in got.body) == (200, True), name


def test_the_answers_are_of_the_shapes_that_providers_have(store: Store, upstream: Scripted) -> None:
    """The control for the frames that are made anew: they have every field of the real ones' that we script."""
    for name, shape in (
        ("openai-chat", chat_answer("x")),
        ("openai-responses", responses_answer([responses_text("x")])),
    ):
        path, body, talk = keep(store, upstream, name, False)
        with serve_replay(talk) as found:
            made = ask(found.anthropic.removesuffix("/anthropic") + path, body).json
        assert set(shape) <= set(made)
