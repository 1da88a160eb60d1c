"""Kept answers in place of a provider's: for the SDKs, for programs, and for tests. Requirement: G1."""

import json
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


def codex_request(run: str, folder: str, took: str, asked: str = "where are you?") -> Any:
    """What Codex says of its run beside the question."""
    about = {"internal_chat_message_metadata_passthrough": {"turn_id": run, "create_time": took}}
    surroundings = f"<environment_context>\n  <cwd>{folder}</cwd>\n  <current_date>2026-01-{took}</current_date>"
    return {
        "model": "m",
        "input": [
            {"type": "additional_tools", "id": f"at_{run}", "role": "developer", "tools": [{"name": "exec"}], **about},
            {"type": "message", "id": f"msg_{run}", "role": "user", "content": surroundings, **about},
            {"type": "message", "id": f"msg2_{run}", "role": "user", "content": asked, **about},
        ],
    }


def codex_result(run: str, folder: str, took: str, output: str = "") -> Any:
    said = f"Chunk ID: {took}abc\nWall time: 0.{took} seconds\nOutput:\n{output or folder}/notes.txt\n"
    return {"type": "function_call_output", "id": f"fco_{run}", "call_id": "call_1", "output": said}


def keep_codex(store: Store, upstream: Scripted) -> Any:
    """Keep a run with a call of a tool; the conversation."""
    arguments = json.dumps({"cmd": "ls /home/ann/work/notes.txt"})
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "exec", "arguments": arguments}
    upstream.say(responses_answer([call]))
    body = codex_request("0a1b", "/home/ann/work", "10")
    with running(store, upstream) as one:
        body["input"] += [
            *one.ask("/openai/v1/responses", body).json["output"],
            codex_result("0a1b", "/home/ann/work", "10"),
        ]
        upstream.say(responses_answer([responses_text("in /home/ann/work")]))
        assert one.ask("/openai/v1/responses", body).status == 200
    return store.latest()


def test_another_run_in_another_folder_asks_the_same_and_its_calls_work_there(store: Store, upstream: Scripted) -> None:
    talk = keep_codex(store, upstream)
    body = codex_request("9f8e", "/srv/build", "31")
    with serve_replay(talk) as found:
        call = ask(found.openai + "/responses", body).json["output"]
        assert json.loads(call[0]["arguments"]) == {"cmd": "ls /srv/build/notes.txt"}
        body["input"] += [*call, codex_result("9f8e", "/srv/build", "31")]
        said = ask(found.openai + "/responses", body).json["output"][-1]["content"][0]["text"]
        assert said == "in /srv/build"
        assert not found.misses


@pytest.mark.parametrize(
    ("asked", "output", "said"),
    [
        ("where is /srv/other?", "", "message 3 of 3 (user) was not kept: kept 'where are you?', asked"),
        ("where are you?", "/home/bob", "message 5 of 5 (tool_result) was not kept: kept"),
        ("where are you?", "/srv/builder", "message 5 of 5 (tool_result) was not kept: kept"),
    ],
)
def test_what_was_said_or_found_in_another_run_may_not_differ(
    store: Store, upstream: Scripted, asked: str, output: str, said: str
) -> None:
    talk = keep_codex(store, upstream)
    body = codex_request("9f8e", "/srv/build", "31", asked)
    with serve_replay(talk) as found:
        got = ask(found.openai + "/responses", body)
        if got.status == 200:
            body["input"] += [*got.json["output"], codex_result("9f8e", "/srv/build", "31", output)]
            got = ask(found.openai + "/responses", body)
        assert got.status == 400
        assert said in got.json["error"]["message"]


def test_the_difference_is_shown_when_it_is_beside_the_text(store: Store, upstream: Scripted) -> None:
    talk = keep_codex(store, upstream)
    body = codex_request("9f8e", "/srv/build", "31")
    body["input"][0]["tools"] = [{"name": "exec_two"}]
    with serve_replay(talk) as found:
        for _ in range(2):  # programs try again; it is one miss
            said = ask(found.openai + "/responses", body).json["error"]["message"]
        assert "message 1 of 3 (event) was not kept" in said
        assert '"exec"' in said
        assert '"exec_two"' in said
        assert len(found.misses) == 1
