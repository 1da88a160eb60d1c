"""The session service for Google's ADK. Its own suite is run by `make test-frameworks`."""

import asyncio
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

import hitherto
from hitherto import Key, Message, Store
from hitherto.errors import HithertoError, MissingExtra

from .standins import adk as standin

WHO = {"app_name": "app", "user_id": "ada"}


@pytest.fixture(autouse=True)
def framework(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    standin.install(monkeypatch)
    monkeypatch.delitem(sys.modules, "hitherto.adapters.adk", raising=False)
    yield
    sys.modules.pop("hitherto.adapters.adk", None)


def service_on(store: Any) -> Any:
    return import_module("hitherto.adapters.adk").SessionService(store)


def event(author: str, text: str | None = None, *, state: dict[str, Any] | None = None, **more: Any) -> Any:
    actions = import_module("google.adk.events.event_actions").EventActions(state_delta=state or {})
    if text is not None:
        role = "user" if author == "user" else "model"
        more["content"] = types.Content(role=role, parts=[types.Part(text=text)])
    return import_module("google.adk.events.event").Event(author=author, actions=actions, **more)


def run(work: Any) -> Any:
    return asyncio.run(work)


def said(service: Any, session: Any) -> list[str]:
    found = run(service.get_session(**WHO, session_id=session.id))
    return [event.content.parts[0].text for event in found.events if event.content]


def append(service: Any, session: Any, *events: Any) -> None:
    for one in events:
        run(service.append_event(session, one))


def test_a_session_comes_back_equal(any_store: Store) -> None:
    """E1"""
    service = service_on(any_store)
    session = run(service.create_session(**WHO, state={"step": 1, "app:theme": "dark", "temp:x": 2}))
    call = types.Part(function_call=types.FunctionCall(id="c1", name="read", args={"path": "setup.py"}))
    back = types.Part(function_response=types.FunctionResponse(id="c1", name="read", response={"lines": 3}))
    image = types.Part.from_bytes(data=bytes(range(256)), mime_type="image/png")
    events = [
        event("user", "What is in it?", state={"step": 2, "user:name": "Ada", "temp:y": 3}),
        event("reader", content=types.Content(role="model", parts=[call])),
        event("reader", content=types.Content(role="user", parts=[back, image])),
        event("reader", state={"app:theme": "light", "note": {"deep": [1, None, 1.5]}}),
        event("reader", "Three lines."),
    ]
    append(service, session, *events)
    again = run(service_on(any_store).get_session(**WHO, session_id=session.id))
    assert again.events == session.events == events
    assert session.state.pop("temp:y") == 3, "temporary state is in the session object, and nowhere else"
    assert again.state == session.state
    assert again.state == {
        "step": 2,
        "note": {"deep": [1, None, 1.5]},
        "app:theme": "light",
        "user:name": "Ada",
    }
    assert again.last_update_time == session.last_update_time == events[-1].timestamp


def test_a_session_reads_as_a_conversation(any_store: Store) -> None:
    service = service_on(any_store)
    session = run(service.create_session(**WHO))
    used = types.GenerateContentResponseUsageMetadata(prompt_token_count=7, candidates_token_count=3)
    append(
        service,
        session,
        event("user", "Why does the build fail?"),
        event("reader", state={"x": 1}),
        event("reader", "An unused import.", usage_metadata=used),
    )
    talk = any_store.latest()
    assert talk is not None
    assert [(str(m.role), m.text) for m in talk.thread()] == [
        ("user", "Why does the build fail?"),
        ("assistant", "An unused import."),
    ]
    assert talk.title == "Why does the build fail?"
    assert (talk.usage().input_tokens, talk.usage().output_tokens) == (7, 3)
    assert talk.metadata["user_id"] == "ada"
    assert len(any_store.search("unused import")) == 1


def test_a_fork_in_hitherto_is_what_the_session_is(any_store: Store) -> None:
    service = service_on(any_store)
    session = run(service.create_session(**WHO))
    append(service, session, event("user", "One"), event("a", "Two"), event("user", "Three"), event("a", "Four"))
    talk = any_store.latest()
    assert talk is not None
    talk.append(Message.user("from elsewhere"))  # is no event, and is passed over
    talk.undo()
    talk.undo()
    session = run(service.get_session(**WHO, session_id=session.id))
    append(service, session, event("user", "Another three"))
    assert said(service, session) == ["One", "Two", "Another three"]


def test_who_was_slower_is_told_and_nothing_is_kept_of_it(any_store: Store) -> None:
    """E2"""
    service = service_on(any_store)
    made = run(service.create_session(**WHO, session_id="s"))
    append(service, made, event("user", "One"))
    one, two = (run(service.get_session(**WHO, session_id="s")) for _ in range(2))

    async def both() -> list[Any]:
        events = event("user", "mine", state={"x": "mine"}), event("user", "yours", state={"x": "yours"})
        calls = (service.append_event(session, e) for session, e in zip((one, two), events, strict=True))
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = run(both())
    stale = import_module("google.adk.errors").StaleSessionError
    assert sorted(isinstance(outcome, stale) for outcome in outcomes) == [False, True]
    winner = "yours" if isinstance(outcomes[0], stale) else "mine"
    assert said(service, one) == ["One", winner]
    assert run(service.get_session(**WHO, session_id="s")).state == {"x": winner}


def test_a_session_that_was_put_together_by_hand_is_compared_by_its_events(any_store: Store) -> None:
    service = service_on(any_store)
    session = run(service.create_session(**WHO))
    append(service, session, event("user", "One"))
    session._storage_update_marker = None
    append(service, session, event("user", "Two"))
    session._storage_update_marker = None
    session.events.pop()
    with pytest.raises(import_module("google.adk.errors").StaleSessionError):
        append(service, session, event("user", "Three"))


def test_sessions_are_listed_by_user_the_last_changed_last(any_store: Store) -> None:
    service = service_on(any_store)
    for number, user in enumerate(["ada", "bob", "ada"]):
        session = run(service.create_session(app_name="app", user_id=user, session_id=f"s{number}"))
        append(service, session, event("user", "Hello", timestamp=1000.0 - number, state={"n": number, "user:u": user}))
    run(service.create_session(app_name="other", user_id="ada"))
    listed = run(service.list_sessions(app_name="app")).sessions
    assert [session.id for session in listed] == ["s2", "s1", "s0"]
    assert [session.events for session in listed] == [[], [], []]
    assert listed[0].state == {"n": 2, "user:u": "ada"}
    assert [session.id for session in run(service.list_sessions(**WHO)).sessions] == ["s2", "s0"]
    run(service.delete_session(**WHO, session_id="s0"))
    assert run(service.get_session(**WHO, session_id="s0")) is None
    assert run(service.get_user_state(**WHO)) == {"u": "ada"}, "state of the user outlives the session"
    with pytest.raises(import_module("google.adk.errors.session_not_found_error").SessionNotFoundError):
        append(service, session.model_copy(update={"id": "s0"}), event("user", "Hello?"))


def test_an_id_is_taken_once_also_by_two_at_a_time(any_store: Store) -> None:
    service = service_on(any_store)

    async def create() -> list[Any]:
        calls = (service.create_session(**WHO, session_id=" s ", state={"n": n}) for n in range(4))
        return await asyncio.gather(*calls, return_exceptions=True)

    made = run(create())
    exists = import_module("google.adk.errors.already_exists_error").AlreadyExistsError
    assert sorted(isinstance(one, exists) for one in made) == [False, True, True, True]
    assert len(run(service.list_sessions(**WHO)).sessions) == 1


def test_recent_events_are_the_last_ones(any_store: Store) -> None:
    service = service_on(any_store)
    session = run(service.create_session(**WHO))
    append(service, session, *(event("user", str(n), timestamp=float(n)) for n in range(1, 8)))
    config = import_module("google.adk.sessions.base_session_service").GetSessionConfig

    def recent(**how: Any) -> list[float]:
        found = run(service.get_session(**WHO, session_id=session.id, config=config(**how)))
        return [event.timestamp for event in found.events]

    assert recent() == [1, 2, 3, 4, 5, 6, 7]
    assert recent(num_recent_events=0) == []
    assert recent(num_recent_events=3) == [5, 6, 7]
    assert recent(num_recent_events=3, after_timestamp=6) == [6, 7]
    assert recent(after_timestamp=99) == []


def test_a_change_of_shared_state_survives_a_death_right_after_its_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made once, by the next one that opens the session."""
    with hitherto.open(tmp_path / "c.db") as store:
        service = service_on(store)
        session = run(service.create_session(**WHO, session_id="s"))
        with monkeypatch.context() as patch:
            patch.setattr(type(service), "_apply", lambda *_: None)  # as if the process were gone
            append(service, session, event("user", "One", state={"app:n": 1, "user:n": 2}))
        assert run(service.get_user_state(**WHO)) == {}
        other = run(service.create_session(**WHO, session_id="other"))
        assert run(service.get_session(**WHO, session_id="s")).state == {"app:n": 1, "user:n": 2}
        append(service, other, event("user", "Two", state={"app:n": 5}))
        assert run(service.get_session(**WHO, session_id="s")).state == {"app:n": 5, "user:n": 2}


@pytest.mark.parametrize("key", [None, Key(bytes(range(32)))], ids=["plain", "sealed"])
def test_one_event_that_cannot_be_read_does_not_take_the_others_along(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: Key | None
) -> None:
    path = tmp_path / "c.db"
    with hitherto.open(path, key=key, maintenance=False) as store:
        service = service_on(store)
        session = run(service.create_session(**WHO))
        append(service, session, *(event("user", str(number)) for number in range(5)))
        talk = store.latest()
        assert talk is not None
        seq = talk.thread()[2].seq
    with closing(sqlite3.connect(path)) as db, db:
        spoil = "UPDATE message SET body = CAST(substr(body, 1, 8) || '!' || substr(body, 10) AS BLOB) WHERE seq = ?"
        db.execute(spoil, (seq,))
    with hitherto.open(path, key=key) as store, caplog.at_level(logging.WARNING):
        assert said(service_on(store), session) == ["0", "1", "3", "4"]
        assert "left out" in caplog.text
        assert len(store.quarantine()) == 1
        session = run(service_on(store).get_session(**WHO, session_id=session.id))
        append(service_on(store), session, event("user", "5"))
        assert said(service_on(store), session) == ["0", "1", "3", "4", "5"]


def test_odd_and_large_values_come_back(any_store: Store) -> None:
    service = service_on(any_store)
    session = run(service.create_session(**WHO, state={"callback": print, "nul": "\0", "half": "\ud83d"}))
    append(service, session, event("user", "One", state={"n": 2**80, "user:n": 2**80}))
    append(service, session, event("user", "x" * 3_000_000))
    again = run(service.get_session(**WHO, session_id=session.id))
    assert "print" in again.state.pop("callback"), "what is no JSON is text"
    odd = {"n": 2**80, "user:n": 2**80, "nul": "\0", "half": "\ud83d"}
    assert again.state == odd
    assert [one.content.parts[0].text for one in again.events] == ["One", "x" * 3_000_000]


@pytest.mark.parametrize("spoil", ["close", "quota"])
def test_a_store_that_cannot_write_says_so(tmp_path: Path, spoil: str) -> None:
    with hitherto.open(tmp_path / "c.db") as store:
        service = service_on(store)
        session = run(service.create_session(**WHO, session_id="s"))
        append(service, session, event("user", "One"))
        if spoil == "close":
            store.close()
        else:
            store.set_quota(1)
        with pytest.raises(HithertoError) as refused:
            append(service, session, event("user", "Two", state={"user:x": 1}))
        assert spoil == "close" or refused.value.hint
        assert len(session.events) == 1, "the session object has what the store has"
    with hitherto.open(tmp_path / "c.db") as store:
        assert said(service_on(store), session) == ["One"]
        assert run(service_on(store).get_user_state(**WHO)) == {}


def test_any_id_is_a_session_of_its_own(any_store: Store) -> None:
    service = service_on(any_store)
    names = [("a/b", "c", "d"), ("a", "b/c", "d"), ("a", "b", "c/d"), ("nul\0", "\udc80", "x" * 5000)]
    for app, user, id in names:
        run(service.create_session(app_name=app, user_id=user, session_id=id, state={"who": app, "user:u": user}))
    for app, user, id in names:
        (found,) = run(service.list_sessions(app_name=app, user_id=user)).sessions
        assert (found.id, found.state["who"], found.state["user:u"]) == (id, app, user)


def test_an_event_is_there_after_the_process_was_killed_inside_a_tool(tmp_path: Path) -> None:
    """E3"""
    program = (
        "import asyncio, os, signal, sys\n"
        "import pytest\n"
        "from tests.adapters import test_adk as t\n"
        "t.standin.install(pytest.MonkeyPatch())\n"
        "service = t.service_on(sys.argv[1])\n"
        "session = asyncio.run(service.create_session(**t.WHO, session_id='s'))\n"
        "t.append(service, session, t.event('user', 'Pay'), t.event('a', 'I call a tool.', state={'paid': True}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "c.db")],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL
    with hitherto.open(tmp_path / "c.db") as store:
        session = run(service_on(store).get_session(**WHO, session_id="s"))
        assert [e.content.parts[0].text for e in session.events] == ["Pay", "I call a tool."]
        assert session.state == {"paid": True}


def test_a_missing_framework_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.adk.sessions.base_session_service", None)
    with pytest.raises(MissingExtra, match="adk"):
        service_on("memory:")
