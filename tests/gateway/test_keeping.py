"""The conversation that a request is kept in, and a store that cannot keep it. Requirements: G1, D8."""

import json
import shutil
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Key, Sanitiser, Store

from ..support.databases import new_database
from ..support.provider import Json, anthropic_answer, anthropic_events
from ..support.waiting import until
from .running import Running, gateway
from .scripted import CHATS, SECRET, Scripted, as_events, running, thread

TOOLS: Json = [{"name": "read", "input_schema": {"type": "object"}}]
PATH = "/anthropic/v1/messages"


def asking(*said: str, tools: Json = TOOLS, **more: Json) -> Json:
    """A request whose history takes turns, beginning with the user."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return {"model": "m", "max_tokens": 5, "messages": messages, "tools": tools, **more}


def say(one: Running, upstream: Scripted, body: Json, answer: str, **headers: str) -> None:
    upstream.say(anthropic_answer(answer))
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    assert one.ask(PATH, body, given).status == 200


def kept(store: Store) -> list[list[str]]:
    """The texts of each conversation's main flow, the newest conversation first."""
    return [[m.text for m in store.conversation(info).thread()] for info in store.conversations()]


def test_histories_tell_conversations_apart(store: Store, upstream: Scripted) -> None:
    with running(store, upstream) as one:
        say(one, upstream, asking("hi"), "first")
        say(one, upstream, asking("hi"), "second")  # the same opening, by another program
        say(one, upstream, asking("hi", "first", "and?"), "of the first")
        say(one, upstream, asking("hi", "second", "and?"), "of the second")
    assert sorted(kept(store)) == [["hi", "first", "and?", "of the first"], ["hi", "second", "and?", "of the second"]]


def test_a_conversation_goes_on_after_the_gateway_was_started_anew(store: Store, upstream: Scripted) -> None:
    with running(store, upstream) as one:
        say(one, upstream, asking("hi"), "first")
    with running(store, upstream) as one:
        say(one, upstream, asking("hi", "first", "and?"), "second")
    assert kept(store) == [["hi", "first", "and?", "second"]]


def test_users_have_conversations_of_their_own_whatever_they_say(store: Store, upstream: Scripted) -> None:
    with running(store, upstream) as one:
        for user in ("ada", "bob"):
            say(one, upstream, asking("hi"), "hello", X_Hitherto_User=user)
        say(one, upstream, asking("hi", "hello", "I am Ada"), "I see", X_Hitherto_User="ada")
        say(one, upstream, asking("hi", "hello", "and I Eve"), "oh", X_Hitherto_User="eve")
    with running(store, upstream) as one:  # another process has only the store to go by
        say(one, upstream, asking("hi", "hello", "I am Bob"), "you are", X_Hitherto_User="bob")
    found = {info.metadata["user"]: store.conversation(info) for info in store.conversations()}
    texts = {user: [m.text for m in talk.thread()][2:] for user, talk in found.items()}
    assert texts == {"ada": ["I am Ada", "I see"], "bob": ["I am Bob", "you are"], "eve": ["and I Eve", "oh"]}


def test_a_program_may_name_its_conversation(store: Store, upstream: Scripted) -> None:
    with running(store, upstream) as one:
        say(one, upstream, asking("hi"), "one", X_Hitherto_Conversation="support-7")
        say(one, upstream, asking("hi", "one", "more"), "two", X_Hitherto_Conversation="support-7")
        say(one, upstream, asking("hi"), "other", X_Hitherto_Conversation="support-7", X_Hitherto_User="ada")
    named, of_ada = store.find("support-7"), store.find("ada/support-7")
    assert named is not None
    assert of_ada is not None
    assert [m.text for m in named.thread()] == ["hi", "one", "more", "two"]
    assert [m.text for m in of_ada.thread()] == ["hi", "other"]


def test_titles_sub_agents_and_new_beginnings_of_claude_code(store: Store, upstream: Scripted) -> None:
    """A title is asked for before the first question; a sub-agent has the session of its parent; after a compaction the
    history begins anew."""
    session = {"X_Claude_Code_Session_Id": "s-1"}
    agent = {**session, "X_Claude_Code_Agent_Id": "a1"}
    with running(store, upstream) as one:
        say(one, upstream, asking("name this", tools=[]), '{"title": "T"}', **session)
        say(one, upstream, asking("name this", tools=[]), '{"title": "T"}', **session)  # again, as after an error
        say(one, upstream, asking("go"), "calling", **session)
        say(one, upstream, asking("sub task"), "sub answer", **agent)
        say(one, upstream, asking("sub task", "sub answer", "on"), "sub end", **agent)
        say(one, upstream, asking("go", "calling", "done"), "good", **session)
        say(one, upstream, asking("search", tools=[{"type": "web_search_1", "name": "web_search"}]), "found", **session)
        say(one, upstream, asking("a summary: go was said"), "yes", **session)
        say(one, upstream, asking("a summary: go was said", "yes", "next"), "ok", **session)
    talk = store.find("claude-code/s-1")
    assert talk is not None
    assert kept(store) == [["a summary: go was said", "yes", "next", "ok"]]
    whole = [m.text for m in talk.thread(full=True)]
    assert whole == ["go", "calling", "done", "good", "a summary: go was said", "yes", "next", "ok"]
    assert [m.text for m in store.messages(subagent="agent", newest_first=False)] == [
        *("sub task", "sub answer", "on", "sub end")
    ]
    aside = [m.text for m in store.messages(subagent="side-call", newest_first=False)]
    assert aside[:2] == ["name this", '{"title": "T"}']
    assert aside.count("name this") == 1
    assert "search" in aside


def test_a_session_has_the_first_words_of_the_person_as_its_title(tmp_path: Path, upstream: Scripted) -> None:
    """Without the rest that the program put around them, without a secret, and until it is given another title."""
    token = "ghp_Zk93hTq0LmXw7RvB2sNcYd5PfGj8KaEu1iOo"
    asked = f"<system-reminder>\nUse tools.\n</system-reminder>\n {'why ' * 14}does {token} break the lint step?"
    session = {"X_Claude_Code_Session_Id": "s-1"}
    with hitherto.open(tmp_path / "a.db", sanitiser=Sanitiser.secrets()) as store:
        with running(store, upstream) as one:
            say(one, upstream, asking("name this", tools=[]), "a name", **session)
            say(one, upstream, asking(asked), "so", **session)
            talk = store.find("claude-code/s-1")
            assert talk is not None
            assert talk.title.startswith("why why ")
            assert "ghp" not in talk.title
            talk.rename("Lint")
            say(one, upstream, asking(asked, "so", "and now?"), "done", **session)
        assert store.conversation(talk.id).title == "Lint"


def test_threads_of_codex_are_sub_agents_of_their_session(store: Store, upstream: Scripted) -> None:
    root = {"session-id": "c-1", "thread-id": "c-1", "x-codex-turn-metadata": '{"request_kind":"turn"}'}
    child = {"session-id": "c-1", "thread-id": "c-2", "x-openai-subagent": "collab_spawn"}
    memory = {**root, "x-codex-turn-metadata": '{"request_kind":"memory"}'}
    path, _, answer, _ = CHATS["openai-responses"]
    upstream.say(answer)
    with running(store, upstream) as one:
        for headers, text in ((memory, "remember"), (root, "go"), (child, "sub")):
            assert one.ask(path, {"model": "m", "input": text}, headers).status == 200
    talk = store.find("codex/c-1")
    assert talk is not None
    assert [m.text for m in talk.thread()] == ["go", "hello there"]
    assert {m.label for m in store.messages() if m.label and not m.main} == {
        "subagent:collab_spawn:c-2",
        next(m.label for m in store.messages(subagent="side-call") if m.label),
    }


@pytest.mark.parametrize("name", ["x" * 5000, "a:b/c", "ü", "../../etc", "%00", ":"])
def test_hostile_names_keep_the_exchange_all_the_same(store: Store, upstream: Scripted, name: str) -> None:
    for header in ("X-Claude-Code-Session-Id", "X-Hitherto-User"):
        with running(store, upstream) as one:
            upstream.say(anthropic_answer("kept"))
            agent = {"X-Claude-Code-Agent-Id": name} if header.startswith("X-Claude") else {}
            got = one.ask(PATH, asking("hi"), {header: name.encode("utf-8").decode("latin-1"), **agent})
            assert got.status == 200
            assert one.keeper.lost == 0
    assert [m.text for m in store.messages()].count("kept") == 2


# -- a store that cannot keep it


@pytest.fixture
def locked(tmp_path: Path) -> Any:
    """A store of little patience, and a function that locks it until the function that it returns is called."""
    path = tmp_path / "locked.db"
    store = hitherto.open(path, timeout_seconds=0.05)

    def lock() -> Any:
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")
        return other.close

    with store:
        yield store, lock


def test_a_program_goes_on_when_the_store_cannot_and_the_loss_is_said_once(locked: Any, upstream: Scripted) -> None:
    store, lock = locked
    with running(store, upstream) as one:
        unlock = lock()
        say(one, upstream, asking("hi"), "unheard")
        say(one, upstream, asking("hi", "unheard", "more"), "unheard too")
        assert one.keeper.lost == 2
        assert len(one.said) == 1
        assert "goes on" in one.said[0]
        unlock()
        say(one, upstream, asking("hi", "unheard", "more", "unheard too", "now"), "heard")
    assert kept(store) == [["hi", "unheard", "more", "unheard too", "now", "heard"]]  # the history brought it along


def test_with_must_keep_nothing_is_sent_that_cannot_be_kept(locked: Any, upstream: Scripted) -> None:
    store, lock = locked
    with running(store, upstream, must_keep=True) as one:
        unlock = lock()
        got = one.ask(PATH, asking("hi"), {"x-api-key": SECRET})
        assert got.status == 503
        assert "cannot be kept" in got.json["error"]["message"]
        assert SECRET not in got.body.decode()
        assert upstream.seen == []
        unlock()
        say(one, upstream, asking("hi"), "heard")
        assert one.ask(PATH, b"no JSON").status == 503
    assert len(upstream.seen) == 1
    assert kept(store) == [["hi", "heard"]]


def test_a_store_that_is_gone_stops_no_program(tmp_path: Path, upstream: Scripted) -> None:
    store = hitherto.open(tmp_path / "gone.db")
    with running(store, upstream) as one:
        store.close()
        say(one, upstream, asking("hi"), "unheard")
        assert one.keeper.lost == 1


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_whose_file_is_gone_takes_nothing_in(tmp_path: Path, upstream: Scripted, replaced: bool) -> None:
    """The system takes what is written to a deleted file: it would be lost without a word."""
    (tmp_path / "there").mkdir()
    with hitherto.open(tmp_path / "there" / "gone.db", maintenance=False) as store, running(store, upstream) as one:
        say(one, upstream, asking("hi"), "heard")
        assert one.keeper.lost == 0
        shutil.rmtree(tmp_path / "there")
        if replaced:
            (tmp_path / "there").mkdir()
            with hitherto.open(tmp_path / "there" / "gone.db") as other:
                other.start()
        say(one, upstream, asking("hi", "heard", "more"), "unheard")
        assert one.keeper.lost == 1
        assert "gone.db was deleted, moved or replaced" in one.said[0]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"\xff\xfe", b'{"messages": 5}', b'{"messages": [{"role": 1}]}', b"{" * 9]
)
def test_a_request_that_is_none_passes_and_keeps_nothing(store: Store, upstream: Scripted, body: bytes) -> None:
    upstream.status = 400
    upstream.say({"error": "no"})
    with running(store, upstream) as one:
        assert one.ask(PATH, body, {"x-claude-code-session-id": "s"}).status == 400
    assert upstream.seen[0].body == body
    assert [m.text for m in store.messages()] == []


# -- what a provider may do


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"content-type": "text/html"}, b"<html>an outage</html>"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, b"no gzip"),
        ({"content-type": "application/json", "content-encoding": "lzma"}, b"unknown"),
        ({"content-type": "text/event-stream"}, b"data: {broken\n\ndata: [1]\n\n"),
        ({"content-type": "application/json"}, b'{"content": "\\ud800"}'),
    ],
)
def test_an_answer_that_is_none_passes_as_it_is(
    store: Store, upstream: Scripted, headers: dict[str, str], body: bytes
) -> None:
    upstream.headers, upstream.pieces = headers, [body]
    with running(store, upstream) as one:
        assert one.ask(PATH, asking("hi")).body == body
        say(one, upstream, asking("hi"), "again")
    assert next(iter(store.messages(newest_first=False))).text == "hi"
    assert "again" in [m.text for m in store.messages()]


def test_a_stream_that_breaks_breaks_for_the_program_too_and_its_part_is_kept(store: Store, upstream: Scripted) -> None:
    pieces = as_events(anthropic_events("one two three"))
    upstream.stream(*pieces[:-4], _cut)
    with running(store, upstream) as one, closing(one.connect()) as connection:
        connection.request("POST", PATH, json.dumps(asking("hi")).encode())
        got = connection.getresponse()
        with pytest.raises(Exception, match="IncompleteRead"):
            got.read()
    assert thread(store) == [("user", "hi")]
    talk = store.latest()
    assert talk is not None
    assert talk.partials()[0].text.startswith("one")


def _cut() -> None:
    raise ConnectionResetError


def test_a_program_that_goes_away_stops_the_provider_and_its_part_is_kept(store: Store, upstream: Scripted) -> None:
    pieces, hung_up = as_events(anthropic_events("one two three")), threading.Event()
    upstream.stream(*pieces[:-4], lambda: hung_up.wait(60))
    with running(store, upstream) as one:
        with closing(one.connect()) as connection:
            connection.request("POST", PATH, json.dumps(asking("hi")).encode())
            got, seen = connection.getresponse(), b""
            while b"one" not in seen:
                seen += got.read1()
        talk = store.latest()
        assert talk is not None
        until(talk.partials)
        hung_up.set()
    assert talk.partials()[0].text.startswith("one")


# -- stores of every kind


@pytest.mark.parametrize("kind", ["sealed", "postgres", "memory"])
def test_every_store_keeps_it(tmp_path: Path, upstream: Scripted, kind: str) -> None:
    where = {"sealed": str(tmp_path / "s.db"), "memory": "memory:"}.get(kind) or new_database().url()
    with hitherto.open(where, key=Key.generate() if kind == "sealed" else None) as store:
        with running(store, upstream) as one:
            upstream.stream(*as_events(anthropic_events("hello there")))
            assert one.ask(PATH, asking("hi")).status == 200
        assert kept(store) == [["hi", "hello there"]]


def test_the_sanitiser_cleans_the_copy_and_not_the_request(tmp_path: Path, upstream: Scripted) -> None:
    token = "ghp_Zk93hTq0LmXw7RvB2sNcYd5PfGj8KaEu1iOo"
    with hitherto.open(tmp_path / "clean.db", sanitiser=Sanitiser.secrets()) as store:
        with running(store, upstream) as one:
            upstream.stream(*as_events(anthropic_events(f"it is {token} indeed")))
            got = one.ask(PATH, asking(f"keep {token}"))
        assert token.encode() in upstream.seen[0].body
        assert token.encode() in got.body
        assert not any(token in m.text for m in store.messages())
        assert [m.text for m in store.messages(newest_first=False)][1].startswith("it is ")
    assert not any(token.encode() in path.read_bytes() for path in tmp_path.iterdir())


def test_a_token_lets_others_in_and_is_not_passed_on(store: Store, upstream: Scripted) -> None:
    token = "t0ken" * 5
    upstream.say(anthropic_answer("in"))
    with gateway(store, token=token, anthropic=upstream.url) as one:
        assert one.ask(PATH, asking("hi")).status == 403
        assert one.ask(PATH, asking("hi"), {"X-Hitherto-Token": "wrong"}).status == 403
        assert one.ask(PATH, asking("hi"), {"X-Hitherto-Token": token, "host": "far.away"}).status == 200
        assert one.ask(f"/{token}{PATH}", asking("hi")).status == 200
    assert [seen.path for seen in upstream.seen] == ["/v1/messages"] * 2
    assert not any(token in str(seen.headers) for seen in upstream.seen)


def test_without_a_token_only_programs_of_this_machine_come_in(store: Store, upstream: Scripted) -> None:
    with running(store, upstream) as one:
        for headers in ({"host": "evil.example.org"}, {"host": ""}, {"sec-fetch-site": "cross-site"}):
            assert one.ask(PATH, asking("hi"), headers).status == 403
        for host in ("localhost", "127.0.0.1:1", "[::1]:80"):
            upstream.say(anthropic_answer("in"))
            assert one.ask(PATH, asking("hi"), {"host": host}).status == 200
