"""When a provider, or the way to it, fails: what is raised, what is sent where, and that the client goes on.

Requirements: A9 (as far as clients go; the rules themselves are in test_base_url), A1.
"""

import json
import logging
import os
import threading
import traceback
from typing import Any

import pytest

from hitherto.chat import Config, Tool, new_async_client
from hitherto.errors import ChatError, InvalidBaseURL, ProviderError

from ..support.chat_kits import (
    CLAUDE,
    COMPATIBLE,
    GEMINI,
    KEY,
    OPENAI,
    RESPONSES,
    Calls,
    Kit,
    Script,
    new_client,
    serving,
    talking,
)
from ..support.provider import Asked, Cut, Reply

VARIABLES = {"claude": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL", "gemini": "GOOGLE_GEMINI_BASE_URL"}
KEYS = {"claude": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY"}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("OPENAI_", "ANTHROPIC_", "GOOGLE_", "GEMINI_")):
            monkeypatch.delenv(name)


def refused(kit: Kit, status: int, said: str) -> Reply:
    """An error in the shape that the provider documents."""
    if kit is CLAUDE:
        body: Any = {"type": "error", "error": {"type": "some_error", "message": said}}
    elif kit is GEMINI:
        body = {"error": {"code": status, "message": said, "status": "SOME_ERROR"}}
    else:
        body = {"error": {"message": said, "type": "some_error", "param": None, "code": None}}
    return Reply(body, status)


# -- errors of the provider


STATUSES = [(400, "sync"), (401, "async"), (401, "sync"), (403, "sync"), (404, "async"), (413, "sync"), (429, "async")]


@pytest.mark.parametrize(
    ("status", "colour"), [*STATUSES, (500, "sync"), (500, "async"), (503, "sync"), (529, "async")]
)
def test_an_error_has_its_status_and_not_the_key_and_the_question_can_be_asked_again(
    kit: Kit, colour: str, streamed: bool, status: int
) -> None:
    said = "x" * 280 + f" the key {KEY} is wrong"
    with talking(kit, refused(kit, status, said), "fine", colour=colour) as talk:
        with pytest.raises(ProviderError) as caught:
            talk.say("Why?", streamed)
        assert caught.value.status == status
        assert caught.value.provider == kit.provider
        assert caught.value.hint
        assert str(status) in str(caught.value)
        assert KEY[:12] not in str(caught.value)
        assert [message.text for message in talk.client.messages] == ["Why?"]
        assert talk.retry() == "fine"
        assert kit.words(talk.server.bodies[1]) == ["Why?"]
        assert [message.text for message in talk.client.messages] == ["Why?", "fine"]


@pytest.mark.parametrize("kit", [CLAUDE, OPENAI, GEMINI], ids=lambda kit: kit.name)
def test_a_key_from_the_environment_is_not_in_an_error_either(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS[kit.provider], KEY)
    with talking(kit, refused(kit, 401, f"wrong: {KEY}"), api_key=None) as talk:
        with pytest.raises(ProviderError) as caught:
            talk.chat("Why?")
        assert KEY in str(talk.server.asked[0].headers)
        assert KEY not in str(caught.value)


@pytest.mark.parametrize("kit", [CLAUDE, OPENAI, GEMINI], ids=lambda kit: kit.name)
def test_without_a_key_anywhere_it_is_said_what_is_missing_and_nothing_is_sent(
    kit: Kit, colour: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with talking(kit, "fine", api_key=None, colour=colour) as talk:
        with pytest.raises(ChatError) as caught:
            talk.chat("Why?")
        assert "key" in f"{caught.value} {caught.value.hint}"
        assert talk.server.asked == []


NONSENSE = {
    "not json": b"<html>busy</html>",
    "empty": b"",
    "half": b'{"id": "x", "content": [{"type": "te',
    "a list": b"[1, 2]",
    "null": b"null",
    "another shape": b'{"hello": "world"}',
    "wrong kinds": b'{"content": 5, "choices": 5, "output": 5, "candidates": 5}',
    "nulls": b'{"content": [null], "choices": [null], "output": [null], "candidates": [null]}',
    "deep": b'{"content": ' + b"[" * 3000 + b"]" * 3000 + b"}",
    "not utf-8": b'{"content": "\xff\xfe"}',
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_an_answer_that_makes_no_sense_is_an_error_of_the_provider(kit: Kit, colour: str, nonsense: str) -> None:
    with talking(kit, Reply(raw=NONSENSE[nonsense]), "fine", colour=colour) as talk:
        with pytest.raises(ProviderError) as caught:
            talk.chat("Why?")
        assert caught.value.status is None
        assert talk.retry() == "fine"
        assert len(talk.client.export_history()) == 2
        assert [m.role for m in talk.client.messages if m.role != "event"] == ["user", "assistant"]  # it may be kept


def test_an_empty_answer_is_an_error_and_not_an_empty_text(kit: Kit) -> None:
    bodies: dict[str, Any] = {
        "anthropic": {**kit.body("x"), "content": []} if kit is CLAUDE else None,
        "chat": {"choices": []},
        "responses": {"status": "completed", "output": []},
        "gemini": {"promptFeedback": {"blockReason": "SAFETY"}},
    }
    with talking(kit, Reply(bodies[kit.shape]), "fine") as talk:
        with pytest.raises(ProviderError, match="no answer"):
            talk.chat("Why?")
        assert talk.retry() == "fine"


# -- streams that end badly


def cut() -> None:
    raise Cut


def test_a_stream_that_breaks_is_an_error_and_what_came_before_is_not_taken_for_the_answer(
    kit: Kit, colour: str
) -> None:
    def reply(asked: Asked) -> Reply:
        events = kit.events(kit.body("one two three"))
        at = next(n for n, event in enumerate(events) if "three" in json.dumps(event))
        return Reply(events=[*events[:at], cut])

    with talking(kit, reply, "whole", colour=colour) as talk:
        with pytest.raises(ProviderError) as caught:
            talk.stream("Count.")
        assert caught.value.status is None
        assert caught.value.hint
        assert [message.role for message in talk.client.messages] == ["user"]
        assert talk.retry() == "whole"
        assert kit.words(talk.server.bodies[1]) == ["Count."]


def test_a_stream_that_ends_before_the_provider_said_so_was_cut_off(kit: Kit, colour: str) -> None:
    def reply(asked: Asked) -> Reply:
        events = kit.events(kit.body("one two three"))
        at = next(n for n, event in enumerate(events) if "three" in json.dumps(event))
        return Reply(events=events[:at])

    with talking(kit, reply, "whole", colour=colour) as talk:
        with pytest.raises(ProviderError, match="cut off"):
            talk.stream("Count.")
        assert talk.stream_retry() == ["whole"]


def test_an_error_in_the_middle_of_a_stream_is_an_error_of_the_provider(kit: Kit, colour: str) -> None:
    said = {
        "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        "chat": {"error": {"message": "Overloaded", "type": "server_error", "code": None}},
        "responses": {"type": "error", "code": "server_error", "message": "Overloaded", "param": None},
        "gemini": {"error": {"code": 503, "message": "Overloaded", "status": "UNAVAILABLE"}},
    }[kit.shape]

    def reply(asked: Asked) -> Reply:
        events = kit.events(kit.body("one two three"))
        at = next(n for n, event in enumerate(events) if "three" in json.dumps(event))
        return Reply(events=[*events[:at], said])

    with talking(kit, reply, "whole", colour=colour) as talk:
        with pytest.raises(ProviderError) as caught:
            talk.stream("Count.")
        assert caught.value.status != 200
        assert talk.retry() == "whole"


def test_a_stream_of_nonsense_is_an_error_of_the_provider(kit: Kit, colour: str) -> None:
    for event in ("{nonsense", "[1]", '{"type": "content_block_delta", "index": 7}', '{"choices": 5, "candidates": 5}'):
        with talking(kit, Reply(events=[event]), "fine", colour=colour) as talk:
            with pytest.raises(ProviderError):
                talk.stream("Count.")
            assert talk.retry() == "fine"


# -- retries and timeouts are the SDK's


def test_the_sdk_tries_again_if_it_may(kit: Kit, colour: str) -> None:
    busy = refused(kit, 500, "busy")
    busy.headers["retry-after-ms"] = "1"  # most of them wait no longer than they are told to
    with talking(kit, busy, "fine", colour=colour, max_retries=1) as talk:
        assert talk.chat("Why?") == "fine"
        assert len(talk.server.asked) == 2
        assert talk.server.bodies[0] == talk.server.bodies[1]
        assert [message.text for message in talk.client.messages] == ["Why?", "fine"]


def test_the_sdk_does_not_try_again_if_it_may_not(kit: Kit, colour: str) -> None:
    with talking(kit, refused(kit, 500, "busy"), "fine", colour=colour, max_retries=0) as talk:
        with pytest.raises(ProviderError):
            talk.chat("Why?")
        assert len(talk.server.asked) == 1


def test_a_provider_that_does_not_answer_in_time_is_an_error(kit: Kit, colour: str, streamed: bool) -> None:
    never = threading.Event()

    def slowly(_: Asked) -> str:
        never.wait(60)
        return "too late"

    with talking(kit, slowly, "fine", colour=colour, timeout_seconds=0.1) as talk:
        try:
            with pytest.raises(ProviderError) as caught:
                talk.say("Why?", streamed)
        finally:
            never.set()
        assert caught.value.status is None
        assert [message.text for message in talk.client.messages] == ["Why?"]


def test_a_provider_that_is_not_there_is_an_error(kit: Kit, colour: str) -> None:
    with serving(Script(kit, ["x"])) as server:
        url = server.url
    with talking(kit, "x", colour=colour, base_url=url) as talk:
        with pytest.raises(ProviderError, match="could not be reached"):
            talk.chat("Why?")
        assert [message.text for message in talk.client.messages] == ["Why?"]


# -- where a key goes


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_to_another_place_is_refused_and_the_key_does_not_go_there(
    kit: Kit, colour: str, status: int
) -> None:
    with serving(Script(kit, ["stolen"])) as other:
        reply = Reply({}, status, headers={"location": f"{other.url}/v1/x"})
        with talking(kit, reply, "fine", colour=colour) as talk:
            with pytest.raises(InvalidBaseURL, match="redirect") as caught:
                talk.chat("Why?")
            assert caught.value.rule == "redirect"
            assert other.asked == []
            assert other.url.rpartition(":")[2] not in str(caught.value)
            assert talk.chat("Again?") == "fine"


def test_another_name_for_the_same_machine_is_another_host(kit: Kit, streamed: bool) -> None:
    def away(asked: Asked) -> Reply:
        return Reply({}, 307, headers={"location": f"http://localhost:{port}{asked.path}"})

    with talking(kit, away) as talk:
        port = talk.server.url.rpartition(":")[2]
        with pytest.raises(InvalidBaseURL):
            talk.say("Why?", streamed)
        assert len(talk.server.asked) == 1


def test_a_redirect_to_the_same_host_is_followed(kit: Kit, colour: str) -> None:
    with talking(kit, Reply({}, 307, headers={"location": "/elsewhere"}), "fine", colour=colour) as talk:
        assert talk.chat("Why?") == "fine"
        assert [asked.path for asked in talk.server.asked][1] == "/elsewhere"
        assert KEY in str(talk.server.asked[1].headers)
        assert talk.server.bodies[0] == talk.server.bodies[1]


class Watched(dict[str, str]):
    """An environment that tells who reads what."""

    def __init__(self, given: Any) -> None:
        super().__init__(given)
        self.read: list[str] = []

    def __getitem__(self, name: str) -> str:
        self.read.append(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.append(name)
        return super().get(name, default)


BAD_URLS = {
    "length": "https://h.com/" + "a" * 3000,
    "characters": "https://h.com/\n",
    "parse": "https://h.com:99999",
    "userinfo": "https://user:pass@h.com",
    "scheme": "http://h.com",
    "host": "https:///v1",
    "placeholder": "https://api.example.com",
}


@pytest.mark.parametrize("rule", BAD_URLS)
@pytest.mark.parametrize("by", ["argument", "environment"])
def test_no_credential_is_read_for_an_address_that_is_refused(
    kit: Kit, rule: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "environment" and rule == "characters":
        monkeypatch.setattr(os, "environ", Watched(os.environ))
    watched = Watched({**os.environ, **dict.fromkeys(KEYS.values(), KEY), "GOOGLE_API_KEY": KEY})
    given: dict[str, Any] = {"api_key": None, "allow_insecure_base_url": False, "base_url": None}
    if by == "argument":
        given["base_url"] = BAD_URLS[rule]
    else:
        watched[VARIABLES.get(kit.provider, "OPENAI_BASE_URL")] = BAD_URLS[rule]
    monkeypatch.setattr(os, "environ", watched)
    for make in (new_client, new_async_client):
        with pytest.raises(InvalidBaseURL) as caught:
            make(kit.config("https://unused", **given))
        assert caught.value.rule == rule
        assert BAD_URLS[rule] not in str(caught.value)
    assert not [name for name in watched.read if "KEY" in name or "TOKEN" in name]


def test_an_openai_compatible_service_has_no_default_address() -> None:
    with pytest.raises(InvalidBaseURL) as caught:
        new_client(Config(provider="openai-compatible", model="m"))
    assert caught.value.rule == "missing"


def test_a_plain_address_is_only_for_who_says_so_in_code(kit: Kit) -> None:
    with serving(Script(kit, ["fine"])) as server:
        with pytest.raises(InvalidBaseURL):
            new_client(kit.config(server.url, allow_insecure_base_url=False))
        assert server.asked == []


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_what_the_environment_has_for_openai_is_not_sent_to_another_service(
    api: str, colour: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "WEBHOOK_SECRET"):
        monkeypatch.setenv(f"OPENAI_{name}", f"{KEY}-{name}")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"Authorization: Bearer {KEY}\nX-More: {KEY}")
    kit = Kit("other", "openai-compatible", api)
    with talking(kit, "fine", colour=colour, api_key=None) as talk:
        assert talk.say("Why?", streamed) == "fine"
        assert KEY not in json.dumps(talk.server.asked[0].headers)


def test_a_key_in_the_configuration_is_the_one_that_is_sent(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEYS.values(), "GOOGLE_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "sk-another")
    with talking(kit, "fine") as talk:
        talk.chat("Why?")
        headers = json.dumps(talk.server.asked[0].headers)
        assert KEY in headers
        assert "sk-another" not in headers
        assert KEY not in talk.server.asked[0].path


def test_the_environment_says_where_to_if_the_configuration_does_not(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Script(kit, ["fine"])) as server:
        monkeypatch.setenv(VARIABLES.get(kit.provider, "OPENAI_BASE_URL"), kit.config(server.url).base_url or "")
        with new_client(kit.config(server.url, base_url=None)) as client:
            assert client.chat("Why?") == "fine"
            assert len(server.asked) == 1


# -- logs


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="hitherto")
    return caplog


def test_one_line_is_logged_for_a_client_with_provider_and_host_and_nothing_more(
    kit: Kit, logged: pytest.LogCaptureFixture
) -> None:
    with talking(kit, "a secret answer") as talk:
        url = f"{talk.client.config.base_url}/secret-path?secret=1"
        logged.clear()
        client = new_client(kit.config("", base_url=url))
        lines = [record for record in logged.records if record.name.startswith("hitherto")]
        assert [record.levelname for record in lines] == ["INFO"]
        assert lines[0].getMessage() == f"provider {kit.provider} at 127.0.0.1"
        client.close()
        logged.clear()
        talk.client.set_tools([Tool("t")])
        talk.chat("a secret question")
        assert "secret" not in "".join(r.getMessage() for r in logged.records if r.name.startswith("hitherto"))


def test_an_error_shows_neither_key_nor_text_in_its_own_words(kit: Kit) -> None:
    with talking(kit, refused(kit, 401, f"bad {KEY}")) as talk:
        with pytest.raises(ProviderError) as caught:
            talk.chat("a private question")
        shown = "".join(traceback.format_exception_only(caught.value))
        assert KEY not in shown
        assert "private" not in shown


def test_a_tool_call_is_not_lost_when_the_answer_to_its_result_fails(kit: Kit, colour: str) -> None:
    ran: list[int] = []
    answers = (Calls((("c1", "look", {}),)), refused(kit, 500, "busy"), "fine")
    with talking(kit, *answers, colour=colour) as talk:
        talk.client.set_tools([Tool("look", handler=lambda: ran.append(1))])
        with pytest.raises(ProviderError):
            talk.chat("Go.")
        assert talk.retry() == "fine"
        assert ran == [1]
        assert kit.history(talk.server.bodies[1]) == kit.history(talk.server.bodies[2])


def test_a_response_that_failed_says_why() -> None:
    failed = {
        **RESPONSES.body("x"),
        "status": "failed",
        "output": [],
        "error": {"code": "server_error", "message": "No luck"},
    }
    with talking(
        RESPONSES, Reply(failed), Reply(events=[{"type": "response.failed", "response": failed}]), "fine"
    ) as talk:
        with pytest.raises(ProviderError, match="No luck"):
            talk.chat("Why?")
        with pytest.raises(ProviderError, match="No luck"):
            talk.stream_retry()
        assert talk.retry() == "fine"


def test_both_names_of_openai_are_told_apart_in_errors() -> None:
    busy = refused(COMPATIBLE, 500, "busy")
    with talking(COMPATIBLE, busy) as talk, pytest.raises(ProviderError, match="openai-compatible"):
        talk.chat("Why?")
