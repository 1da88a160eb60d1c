"""Secrets are taken out before the first write: of everything that is written, and whoever writes it.

Requirements: D8.
"""

import base64
import copy
import json
import os
import random
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Block, Message, Sanitiser, formats
from hitherto._engine.recovery import keep, new_key
from hitherto.attachment import Attachment
from hitherto.errors import HithertoError, InvalidArgument, NotClean, PartialImport
from hitherto.model import Setup
from hitherto.records import Records
from hitherto.sanitiser import Rule
from hitherto.sanitiser.redactor import Redactor

from ..recorder.test_recorder import (
    TALKERS,
    AnthropicStreamed,
    GeminiStreamed,
    OpenAIChatStreamed,
    OpenAIResponsesStreamed,
    Talker,
    closed,
    speak,
)
from ..support.provider import Asked, Reply, provider, responses_answer, responses_events, responses_text

__all__ = ["closed"]  # a fixture, for all tests here

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
CHANCE = random.Random(8)
SECRET = "gh" + "p_" + "".join(CHANCE.choices(LETTERS, k=36))  # made here, so that no scanner stumbles over this file
OTHER = "gh" + "p_" + "".join(CHANCE.choices(LETTERS, k=36))
PASSWORD = "".join(CHANCE.choices(LETTERS, k=24))
MARKER = "[redacted:"


def files_with(folder: Path, *texts: str) -> list[str]:
    """The files in which one of these texts lies, in clear or in base64."""
    found = []
    for file in sorted(folder.rglob("*")):
        data = file.read_bytes() if file.is_file() else b""
        found += [file.name for text in texts if text.encode() in data]
    return found


def redactor(rules: Sanitiser | None = None) -> Redactor:
    return Redactor(rules or Sanitiser.secrets(), b"k" * 32)


@pytest.fixture
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is not clean."""
    return tmp_path_factory.mktemp("outside")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[hitherto.Store]:
    with hitherto.open(tmp_path / "c.db", sanitiser=Sanitiser.secrets()) as store:
        yield store


def test_every_text_of_a_message_is_clean_before_it_is_written(store: hitherto.Store, tmp_path: Path) -> None:
    document = base64.b64encode(f"notes: {SECRET}".encode()).decode()
    message = Message(
        "assistant",
        (
            Block.text(f"token={SECRET} ok", source=f"said {SECRET}"),
            Block.thinking(f"I know {SECRET}"),
            Block.tool_call("call_1", "login", {"db_password": PASSWORD, "note": SECRET}),
            Block("content", f"key {SECRET}".encode(), "text", "text/plain"),
        ),
        extra={"seen": [SECRET, {"deep": SECRET}]},
        raw={
            "content": SECRET,
            "tool_calls": [{"function": {"arguments": json.dumps({"password": PASSWORD})}}],
            "source": {"type": "base64", "media_type": "text/plain", "data": document},
            "url": f"data:text/plain;base64,{document}",
            SECRET: 1,
        },
        privacy={"note": SECRET},
    )
    talk = store.start(title=f"about {SECRET}", metadata={"note": SECRET}, system_prompt=f"use {SECRET}")
    talk.append(message)
    list(store.search("token"))
    assert files_with(tmp_path, SECRET, PASSWORD, document) == []
    (saved,) = talk.thread()
    assert "[redacted:github" in saved.text
    assert saved.text.startswith("token=[")
    assert saved.text.endswith(" ok")
    assert SECRET not in repr(saved)
    assert PASSWORD not in repr(saved)
    assert SECRET not in repr((talk.title, talk.metadata, talk.system_prompt))
    assert saved.blocks[2].tool_name == "login"  # it is JSON still
    assert saved.privacy is not None
    assert saved.privacy["contains_secrets"] is True
    assert len(saved.privacy["rules"]) >= 2  # type: ignore[arg-type]  # a list
    assert all(SECRET not in one for one in saved.privacy["hashes"])  # type: ignore[attr-defined]  # a list


def test_without_a_sanitiser_the_same_texts_are_found_in_the_file(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db") as store:
        store.start(title=f"about {SECRET}").append(Message.user(SECRET))
    assert files_with(tmp_path, SECRET)


def test_what_holds_no_secret_comes_back_as_it_was(store: hitherto.Store) -> None:
    signature = base64.b64encode(CHANCE.randbytes(300)).decode()
    raw = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": signature}],
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "usage": {"output_tokens": 3},
        "n": [1, 2.5, None, True],
    }
    message = Message("assistant", (Block.text("fine"),), extra={"a": "b"}, raw=raw)
    saved = store.start().append(message)
    assert (saved.raw, saved.extra, saved.privacy) == (raw, {"a": "b"}, None)


def test_a_picture_is_left_alone_and_text_in_an_attachment_is_not(
    store: hitherto.Store, tmp_path: Path, outside: Path
) -> None:
    picture = b"\x89PNG" + CHANCE.randbytes(100_000)
    notes = outside / "notes.txt"
    notes.write_text("a line\n" * 40_000 + f"token={SECRET}\n" + "a line\n" * 10)
    talk = store.start()
    blocks = (Block.image(picture, "image/png"), Block("content", Attachment.from_file(notes), "text", "text/plain"))
    talk.append(Message("user", blocks))
    (saved,) = talk.thread()
    assert saved.blocks[0].content == picture
    kept = saved.blocks[1].content
    assert isinstance(kept, bytes)
    assert kept.startswith(b"a line\n" * 40_000 + b"token=[redacted:")
    assert kept.endswith(b"]\n" + b"a line\n" * 10)
    assert SECRET.encode() not in kept
    assert files_with(tmp_path, SECRET) == []


HIDDEN = "".join(f"\\u{ord(c):04x}" for c in SECRET)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "%s"}',
        '{"a": "%s", "a": 1}',  # the second hides the first from parsers
        '{"n": 1e999, "a": "%s"}',
        '{"n": "\\ud800", "a": "%s"}',
        '{"n": 123456789012345678901234567890, "a": "%s"}',
        '{"a": "%s"}\n{"b": 1}\n',
        '{"a": "%s"} and that is all',
        '{ "n" : 1.10,\n\t"a":"%s" }',
    ],
)
def test_what_a_json_text_hides_in_escapes_is_taken_out_and_the_rest_stays_as_it_was(text: str) -> None:
    said = redactor().text(text % HIDDEN)
    assert said == text % "[redacted:github-token]"
    assert redactor().text(text % "plain") == text % "plain"


def test_titles_metadata_labels_and_setups_changed_later_are_clean(store: hitherto.Store, tmp_path: Path) -> None:
    talk = store.start()
    talk.append(Message.user("x"))
    talk.rename(f"now {SECRET}")
    talk.describe({"note": f"now {SECRET}", "api_key": PASSWORD})
    talk.configure(system_prompt=f"be {SECRET}", tools=[{"name": "t", "description": SECRET, "parameters": {}}])
    talk.compact(f"in short: {SECRET}")
    with pytest.raises(NotClean):
        talk.label(SECRET)
    with pytest.raises(NotClean):
        talk.append(Message.user("x", key=SECRET))
    with pytest.raises(NotClean) as caught:
        store.ensure(SECRET)
    assert SECRET not in str(caught.value)
    with pytest.raises(NotClean):
        store.start(project=f"/tmp/{SECRET}")
    assert files_with(tmp_path, SECRET, PASSWORD) == []


def test_saving_restoring_detaching_and_importing_are_clean_too(
    store: hitherto.Store, tmp_path: Path, outside: Path
) -> None:
    with hitherto.open(outside / "dirty.db") as dirty:
        talk = dirty.start(title=SECRET, provider="openai", system_prompt=SECRET)
        talk.append(Message.user(f"use {SECRET}"))
        talk.append(Message.assistant("done"))
        snapshot = talk.snapshot()
        formats.save(dirty, outside / "all.jsonl")
    store.save([Message.user(SECRET)])
    store.restore(snapshot)
    first = formats.load(outside / "all.jsonl", store)
    again = formats.load(outside / "all.jsonl", store)
    assert first.messages
    assert not again.messages  # it is recognised, although it lies here in other words
    store.conversation(talk.id).detach()
    assert files_with(tmp_path, SECRET) == []


def test_a_rule_that_fails_refuses_the_write_and_says_nothing_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hitherto.open(tmp_path / "c.db", sanitiser=Sanitiser.secrets()) as store:
        talk = store.start()

        def fails(*_: object, **__: object) -> object:
            raise RuntimeError(SECRET)

        monkeypatch.setattr(Sanitiser, "clean", fails)
        with pytest.raises(NotClean) as caught:
            talk.append(Message.user(f"token={SECRET}"))
        monkeypatch.undo()
        assert SECRET not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        assert talk.refresh().count == 0
    assert files_with(tmp_path, SECRET) == []


def test_the_same_value_has_the_same_hash_here_and_another_elsewhere(tmp_path: Path) -> None:
    hashes = []
    for name in ("a.db", "b.db"):
        with hitherto.open(tmp_path / name, sanitiser=Sanitiser.secrets()) as store:
            for text in (f"one {SECRET}", f"two {SECRET}", f"three {OTHER}"):
                privacy = store.start().append(Message.user(text)).privacy or {}
                hashes.append(privacy["hashes"])
    assert hashes[0] == hashes[1] != hashes[2]
    assert hashes[0] != hashes[3] == hashes[4]


def test_no_error_shows_what_was_refused(store: hitherto.Store) -> None:
    talk = store.start()
    with pytest.raises(HithertoError) as caught:
        talk.append(Message.user("x", label=SECRET))
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_half_a_secret_is_not_kept_of_an_answer_on_its_way(store: hitherto.Store, tmp_path: Path) -> None:
    talk = store.start()
    talk.append(Message.user("What is the token?"))
    key = new_key(store.engine.message_ids.number(talk.at or ""))
    for length in (8, 20, 39):  # as it comes in, the last one a character short of being one
        keep(
            talk.state,
            key,
            [Message.assistant(f"It is {SECRET[:length]}", raw={"content": f"It is {SECRET[:length]}"})],
        )
        (partial,) = talk.partials()
        assert "It is ".startswith(partial.text)
        assert files_with(tmp_path, SECRET[:20]) == []
    keep(talk.state, key, [Message.assistant(f"It is {SECRET}, or so.\nAnd that is that.\n")])
    assert talk.partials()[0].text.startswith("It is [redacted:")
    assert "And that" in talk.partials()[0].text


def test_rules_of_ones_own_count(tmp_path: Path) -> None:
    rules = Sanitiser([Rule("badge", "company", r"BADGE-\d{6}")])
    with hitherto.open(tmp_path / "c.db", sanitiser=rules) as store:
        assert store.start().append(Message.user("I am BADGE-123456.")).text == "I am [redacted:badge]."


def test_something_else_is_no_sanitiser(tmp_path: Path) -> None:
    with pytest.raises(HithertoError, match="sanitiser"):
        hitherto.open(tmp_path / "c.db", sanitiser="secrets")  # type: ignore[arg-type]  # that is the point


def test_a_sealed_store_is_cleaned_before_it_is_sealed(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "c.db", key=os.urandom(32), sanitiser=Sanitiser.secrets()) as store:
        talk = store.start(title=SECRET)
        talk.append(Message.user(SECRET))
        store.unseal()
    assert files_with(tmp_path, SECRET) == []
    with closing(sqlite3.connect(tmp_path / "c.db")) as raw, raw:
        assert raw.execute("SELECT count(*) FROM message").fetchone() == (1,)


def test_a_setup_is_cleaned_as_a_whole(store: hitherto.Store) -> None:
    assert store.engine.redactor is not None
    setup = Setup("openai", "m", SECRET, ({"name": "t", "parameters": {"password": PASSWORD}},), {"content": SECRET})
    assert SECRET not in repr(store.engine.redactor.setup(setup))
    assert PASSWORD not in repr(store.engine.redactor.setup(setup))
    plain = Setup("openai", "m", "Be kind.", ({"name": "t"},))
    assert store.engine.redactor.setup(plain) == plain


def test_an_id_that_holds_a_secret_becomes_another_and_a_result_still_finds_its_call(store: hitherto.Store) -> None:
    talk = store.start()
    call = {"id": SECRET, "type": "function", "function": {"name": "t", "arguments": "{}"}}
    talk.append(Message.assistant(Block.tool_call(SECRET, "t", {}), raw={"tool_calls": [call]}))
    talk.append(Message.tool_result(SECRET, "done"))
    talk.append(Message.tool_result(OTHER, "done"))
    asked, answered, other = talk.thread()
    assert asked.blocks[0].id == answered.blocks[0].id != other.blocks[0].id
    assert asked.raw["tool_calls"][0]["id"] == asked.blocks[0].id  # type: ignore[index]  # as it was given
    assert SECRET not in repr([asked, answered])


# -- across texts that belong together


@pytest.mark.parametrize("cut", [1, 4, 10, 39])
def test_a_secret_that_lies_across_two_parts_of_a_message_is_found(store: hitherto.Store, cut: int) -> None:
    parts = [f"It is {SECRET[:cut]}", f"{SECRET[cut:]}, I think. And {OTHER}."]
    message = Message("assistant", tuple(map(Block.text, parts)), raw={"parts": [{"text": part} for part in parts]})
    saved = store.start().append(message)
    told = "".join(part["text"] for part in saved.raw["parts"])  # type: ignore[index]  # as it was given
    for text in (saved.text, told):
        assert text.startswith("It is [redacted:")
        assert text.count(MARKER) == 2
        assert "], I think. And [redacted:" in text
        assert SECRET[4:] not in text


def test_parts_that_are_secrets_of_their_own_are_found_where_joining_would_hide_them(store: hitherto.Store) -> None:
    saved = store.start().append(Message("user", (Block.text("x"), Block.text(SECRET), Block.text("y"))))
    assert saved.text.startswith("x[redacted:")
    assert saved.text.endswith("]y")


# -- recording


def parrot(asked: Asked) -> object:
    """Answers with a secret of its own."""
    said, id = f"Take {OTHER} then.", f"resp_{uuid.uuid4().hex}"
    if asked.path.endswith("/responses"):
        streamed = asked.body.get("stream")
        return Reply(events=responses_events(said, id)) if streamed else responses_answer([responses_text(said)], id)
    return speak(asked, said)


@pytest.mark.parametrize("whose", ["store", "recorder", "both"])
@pytest.mark.parametrize("kind", TALKERS)
def test_a_recorded_chat_is_clean_and_recognised_again(kind: type[Talker], whose: str, tmp_path: Path) -> None:
    """The SDK sends the history with its secrets each time; it lies here without them, and nothing is kept twice."""
    rules = Sanitiser.secrets()
    with (
        provider(parrot) as server,
        hitherto.open(tmp_path / "c.db", sanitiser=None if whose == "recorder" else rules) as store,
    ):
        about = {} if whose == "store" else {"sanitiser": rules}
        talker = kind(server, store, title=f"{SECRET}", **about)
        for n in range(3):
            assert OTHER in talker.say(f"turn {n}: token={SECRET}")
        assert SECRET in json.dumps(server.asked[-1].body)  # the provider gets what was said
        (talk,) = [store.conversation(info) for info in store.conversations().items]
        assert [m.role for m in talk.thread()] == ["user", "assistant"] * 3
        assert len(talk.branches()) == 1
        assert all(MARKER in m.text and m.privacy for m in talk.thread())
        assert files_with(tmp_path, SECRET, OTHER) == []
    assert files_with(tmp_path, SECRET, OTHER) == []


# -- an answer on its way

HALF = SECRET[:20]
STREAMED = [OpenAIChatStreamed, OpenAIResponsesStreamed, AnthropicStreamed, GeminiStreamed]


def stalling(asked: Asked, pause: Callable[[], None]) -> Reply:
    """An answer that stops for a while in the middle of a secret."""
    said = f"One two.\nIt is {OTHER}, yes.\nAnd then {HALF} {SECRET[20:]} again.\n"
    path = asked.path.split("?")[0]
    spoken: Any = responses_events(said) if path.endswith("/responses") else speak(asked, said).events
    events = [json.loads(json.dumps(event).replace(f"{HALF} ", HALF)) for event in spoken]
    place = next(n for n, event in enumerate(events) if HALF in json.dumps(event)) + 1
    return Reply(events=[*events[:place], pause, *events[place:]])


def kept_while_it_stalls(kind: type[Talker], folder: Path, rules: Sanitiser | None) -> tuple[list[Message], list[str]]:
    """The stored messages of an answer that stalls, and the places that hold half of the secret."""
    kept: list[Message] = []
    leaks: list[str] = []
    sent = "yes.\n" if rules else HALF

    def pause() -> None:
        for _ in range(2000):
            found = [m for info in kept_in.conversations().items for m in kept_in.conversation(info).partials()]
            if found and sent in found[0].messages[0].text:  # an earlier part may be kept before all of it was read
                kept.extend(found[0].messages)
                leaks.extend(files_with(folder, HALF))
                return
            threading.Event().wait(0.01)

    with (
        provider(lambda asked: stalling(asked, pause)) as server,
        hitherto.open(folder / "c.db", sanitiser=rules) as kept_in,
    ):
        assert SECRET in kind(server, kept_in, partial_seconds=0.05).say("What is it?")
        (talk,) = [kept_in.conversation(info) for info in kept_in.conversations().items]
        assert talk.partials() == []
        assert (SECRET in talk.thread()[-1].text) is (rules is None)
    return kept, leaks


@pytest.mark.parametrize("kind", STREAMED)
def test_of_an_answer_on_its_way_all_is_kept_but_half_a_secret(kind: type[Talker], tmp_path: Path) -> None:
    kept, leaks = kept_while_it_stalls(kind, tmp_path, Sanitiser.secrets())
    (message,) = kept
    assert message.text == "One two.\nIt is [redacted:github-token], yes.\n"
    assert json.dumps(message.text)[1:-1] in json.dumps(message.raw)  # which is what is sent when it is accepted
    assert any(f'"role": "{role}"' in json.dumps(message.raw) for role in ("assistant", "model"))
    assert leaks == []


def test_without_a_sanitiser_half_a_secret_is_found_beside_the_tree(tmp_path: Path) -> None:
    kept, leaks = kept_while_it_stalls(OpenAIChatStreamed, tmp_path, None)
    assert HALF in kept[0].text
    assert leaks


def test_what_cannot_grow_any_more_is_kept_whole() -> None:
    """Names, ids, words, a signed thought, a call: only the last text is cut."""
    thought = {"type": "thinking", "thinking": "So it is 4", "signature": "c2ln" * 40}
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"path": "/etc/hosts", "content": "x = 1"}}
    said = {"type": "text", "text": f"One.\nIt is {HALF}"}
    clean = redactor()
    for last in (call, said):
        raw = {"role": "assistant", "content": [thought, last], "status": "in_progress"}
        message = Message("assistant", (Block.thinking("So it is 4"), Block.text(f"One.\nIt is {HALF}")), raw=raw)
        kept = clean.message(message, complete=False)
        assert kept.text == "One.\n"
        whole = last if last is call else said | {"text": "One.\n"}
        assert kept.raw == raw | {"content": [thought, whole]}
    call_block = Block.tool_call("call_1", "look", {"path": "/etc/hosts"})
    assert clean.message(Message("assistant", (call_block,)), complete=False).blocks == (call_block,)
    arguments = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "b c"}'}}]}
    assert clean.message(Message("assistant", (), raw=arguments), complete=False).raw == arguments


def test_half_a_secret_that_began_in_the_part_before_is_not_kept() -> None:
    parts = [f"One.\nIt is {SECRET[:12]}", SECRET[12:30]]
    message = Message("assistant", tuple(map(Block.text, parts)), raw={"parts": [{"text": part} for part in parts]})
    kept = redactor().message(message, complete=False)
    assert [block.content for block in kept.blocks] == ["One.\n", ""]
    assert kept.raw == {"parts": [{"text": "One.\n"}, {"text": ""}]}


def test_what_had_come_of_an_answer_is_imported_to_its_end(store: hitherto.Store, outside: Path) -> None:
    said = "one two three four five token eleven"
    file = outside / "half.jsonl"
    with hitherto.open("memory:") as other:
        talk = other.start()
        talk.append(Message.user("q"))
        for text in (f"{OTHER} {said}", f"{OTHER} {said} twelve"):
            half = Message.assistant(text, raw={"role": "assistant", "content": text})
            keep(talk.state, new_key(other.engine.message_ids.number(talk.at or "")), [half])
        formats.save(other, file)
    for _ in range(2):
        formats.load(file, store)
        found = [partial.text for partial in store.conversation(talk.id).partials()]
        assert sorted(found) == [f"[redacted:github-token] {said}", f"[redacted:github-token] {said} twelve"]


# -- once more, and apart


def test_cleaning_what_is_clean_changes_nothing(store: hitherto.Store) -> None:
    clean = redactor(Sanitiser.everything())
    message = Message.user(f"{SECRET}, bob@corp.com, 10.1.2.3", raw={"content": SECRET, "10.1.2.3": {"id": SECRET}})
    once = clean.message(message)
    assert clean.message(once) == once
    assert once.privacy is not None
    assert once.privacy["rules"] == ["email", "github-token", "ip-address"]
    for rule in Sanitiser.everything().rules:
        notes = Message("user", privacy={"rules": [rule.name], "hashes": [f"{rule.name}:0123456789abcdef"]})
        assert clean.message(notes) is notes
    small = "gl" + "pat-" + "".join(random.Random(3).choices(LETTERS[26:], k=20)).lower()
    assert small not in repr(clean.message(Message("user", privacy={"hashes": [f"{small}:0123456789abcdef"]})))
    random_id = {"id": "69913186-5506-4511-a72c-5e8f1096ad53"}
    assert redactor(Sanitiser([Rule("number", "number", "[0-9]{8}")])).value(random_id) is random_id


@pytest.mark.parametrize("as_text", [False, True])
def test_names_of_one_object_stay_apart(as_text: bool) -> None:
    given = {"10.1.2.3": "up", "10.1.2.4": "down", "a@corp.com": 1, "b@corp.com": 2}
    clean = redactor(Sanitiser.everything())
    after = clean.value(json.dumps(given)) if as_text else clean.value({"deep": given})
    found = json.loads(str(after)) if as_text else after["deep"]  # type: ignore[index]  # as it was given
    assert list(found.values()) == ["up", "down", 1, 2]
    assert all(name.startswith(MARKER) for name in found)
    assert clean.value(given) == clean.value(given)


def test_state_of_a_provider_is_left_alone_and_a_key_in_its_place_is_not() -> None:
    chance = random.Random(2)
    clean = redactor(Sanitiser([*Sanitiser.secrets().rules, Rule("short", "short", "Zq7[A-Za-z0-9]{20}")]))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        run = encode(chance.randbytes(300)).decode()
        state = f"{run[:200]}Zq7{SECRET[4:]}{run[200:]}"
        raw = {"signature": state, "thoughtSignature": state, "encrypted_content": state, "type": "redacted_thinking"}
        for beside in ({}, {"media_type": "image/png"}):
            message = Message("assistant", (), raw=raw | {"data": state} | beside)
            assert clean.message(message) is message
        assert MARKER in clean.text(f"it is {state}")
    for key in (SECRET, "sk-" + "ant-api03-" + "".join(chance.choices(LETTERS, k=93)) + "AA"):
        assert key not in repr(redactor().value({"signature": key, "data": key}))


def test_two_thoughts_and_two_results_are_looked_at_joined() -> None:
    halves = (f"I {SECRET[:12]}", SECRET[12:])
    raw = {"content": [{"type": "thinking", "thinking": half} for half in halves]}
    for kind in ("thinking", "tool_result"):
        blocks = tuple(Block(kind, half) for half in halves)
        kept = redactor().message(Message("assistant", blocks, raw=raw))
        assert [block.content for block in kept.blocks] == ["I [redacted:github-token]", ""]
        assert SECRET[12:] not in repr(kept)


# -- what is text, whatever it is called


def said_by(data: bytes) -> dict[str, str]:
    plain, apart = base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()
    lines = base64.encodebytes(data).decode()
    return {"standard": plain, "url-safe": apart, "unpadded": apart.rstrip("="), "lines": lines}


@pytest.mark.parametrize("way", ["standard", "url-safe", "unpadded", "lines"])
@pytest.mark.parametrize("shape", [{"mimeType": "text/plain"}, {"media_type": "application/octet-stream"}, {}])
def test_base64_of_either_alphabet_is_read(way: str, shape: dict[str, str]) -> None:
    notes = "ÿþ?>~ notes\n" * 9 + f"token={SECRET}\n" + "ÿþ?>~ notes\n" * 9
    said = said_by(notes.encode())[way]
    kept = redactor().value(shape | {"data": said})["data"]  # type: ignore[index]  # as it was given
    read = base64.urlsafe_b64decode(kept.replace("+", "-").replace("/", "_") + "===").decode()
    assert read == notes.replace(SECRET, "[redacted:github-token]")
    assert ("-" in kept) is (way in ("url-safe", "unpadded"))
    picture = said_by(b"\x89PNG" + CHANCE.randbytes(3000))[way]
    given = shape | {"data": picture}
    assert redactor().value(given) is given


def test_text_that_only_looks_like_base64_is_text() -> None:
    key = "AK" + "IA" + "".join(random.Random(4).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", k=16))
    for said in (key, f"{SECRET}\n{OTHER}\n{SECRET}\n"):
        for shape in ({"type": "text", "media_type": "text/plain"}, {"media_type": "image/png"}, {}):
            kept = redactor().value(shape | {"data": said})
            assert said not in repr(kept)
            assert MARKER in repr(kept)
            assert OTHER not in repr(kept)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("kind", ["application/octet-stream", "text/x-python-code", "application/x-pem-file"])
def test_a_file_that_turns_out_to_be_text_is_cleaned(kind: str, encoding: str, tmp_path: Path) -> None:
    many = "秘密は何でしょうか誰にも言わない\n" if encoding == "utf-16" else "A = 1\n"  # whose mark alone tells
    text = "Über\n" + many * 30_000 + f"TOKEN={SECRET}\n"
    file = tmp_path / "my.env"
    file.write_bytes(text.encode(encoding))
    for content in (Attachment.from_file(file), file.read_bytes()):
        kept = redactor().message(Message("user", (Block("content", content, "text", kind),))).blocks[0].content
        assert isinstance(kept, Attachment | bytes)
        data = kept if isinstance(kept, bytes) else kept.read()
        assert data.decode(encoding) == text.replace(SECRET, "[redacted:github-token]")


def test_files_that_are_no_text_are_not_touched(tmp_path: Path) -> None:
    for data in (
        b"\x89PNG\r\n" + CHANCE.randbytes(9000) + SECRET.encode(),
        b"RIFF\0\0" + SECRET.encode() + b"\0" * 999,
    ):
        file = tmp_path / "a.bin"
        file.write_bytes(data)
        message = Message("user", (Block("content", Attachment.from_file(file), "image", "image/png"),))
        assert redactor().message(message) is message


def test_half_of_a_character_at_the_end_of_a_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    data = f"\ufefftoken={SECRET} ".encode("utf-16-le") + b"x"
    file.write_bytes(data)
    for content in (Attachment.from_file(file), data):
        kept = redactor().message(Message("user", (Block("content", content, "text", "text/plain"),))).blocks[0].content
        found = kept.read() if isinstance(kept, Attachment) else kept
        assert found == "\ufefftoken=[redacted:github-token] ".encode("utf-16-le") + b"x"


def test_what_a_block_is_called_is_looked_at_too() -> None:
    block = Block(f"a-{SECRET}", "x", f"b-{SECRET}", f"text/{SECRET}")
    assert SECRET not in repr(redactor().message(Message("user", (block,))))


def test_a_document_that_was_kept_in_base64_is_cleaned_when_it_is_copied(tmp_path: Path) -> None:
    """It is an attachment that says another one."""
    notes = base64.b64encode(f"token={SECRET}\n".encode() + b"a line of it\n" * 9000).decode()
    picture = base64.b64encode(CHANCE.randbytes(99_000)).decode()
    sources = [{"media_type": kind, "data": data} for kind, data in (("text/plain", notes), ("image/png", picture))]
    with hitherto.open(tmp_path / "c.db") as store:
        talk = store.start()
        talk.append(Message("user", (), raw={"content": sources}))
    with hitherto.open(tmp_path / "c.db", sanitiser=Sanitiser.secrets()) as store:
        (copied,) = store.conversation(talk.id).detach().thread()
        after = copied.raw["content"]  # type: ignore[index]  # as it was given
        assert base64.b64decode(after[0]["data"]).startswith(b"token=[redacted:github-token]\na line")
        assert after[1] == sources[1]


# -- records, projects, errors


def test_records_that_are_loaded_and_copied_are_clean(tmp_path: Path, outside: Path) -> None:
    """The items beside the messages are clean, too."""
    file = outside / "r.jsonl"
    plain = Sanitiser([Rule("none", "none", "never-ever")])
    id, other = str(uuid.uuid4()), str(uuid.uuid4())
    with hitherto.open(outside / "old.db") as store:
        made = Records(store, sanitiser=plain).create(
            id,
            messages=[Message.user("x")],
            participants=[{"id": other, "role": "user", "display_name": SECRET}, {"id": SECRET, "role": "user"}],
            summary={"synopsis": SECRET, "keywords": [SECRET], "action_items": [SECRET]},
            privacy={"consent": SECRET},
        )
        formats.save(store, file)
        assert made.participants[0].display_name == SECRET
    assert files_with(outside, SECRET)  # nothing has cleaned it so far
    with hitherto.open(tmp_path / "c.db", sanitiser=Sanitiser.secrets()) as store:
        formats.load(file, store)
        found = Records(store, sanitiser=plain).get(id)
        assert found is not None
        assert SECRET not in repr(found)
        assert found.participants[0].id == other
        assert [p.role for p in found.participants] == ["user", "user"]
        assert files_with(tmp_path, SECRET) == []
    with hitherto.open(outside / "old.db", sanitiser=Sanitiser.secrets()) as store:
        copied = store.conversation(id).detach()
        assert SECRET not in repr(Records(store, sanitiser=plain).get(copied.id))


def test_where_a_message_came_from_is_clean(store: hitherto.Store, tmp_path: Path, outside: Path) -> None:
    file = outside / "o.jsonl"
    with hitherto.open("memory:") as other:
        first = other.start()
        first.append(Message.user("x"))
        talk = first.detach()
        origin = talk.thread()[0].origin or ""
        formats.save([talk], file)
    formats.load(file, store)
    assert store.conversation(talk.id).thread()[0].origin == origin
    again = str(uuid.uuid4())
    lines = file.read_text().replace(talk.id, again).replace(origin, f"{origin}/{SECRET}")
    file.write_text(lines.replace('"messages":1,', f'"messages":1,"opening":"{SECRET}",'))
    with pytest.raises(PartialImport, match="checksum"):
        formats.load(file, store)
    assert files_with(tmp_path, SECRET) == []
    assert MARKER in (store.conversation(again).thread()[0].origin or "")


def test_a_project_may_be_called_like_an_account_and_not_like_a_secret(tmp_path: Path) -> None:
    folder = "/Users/al/Library/CloudStorage/GoogleDrive-alice@corp.com/x"
    with hitherto.open(tmp_path / "c.db", sanitiser=Sanitiser.everything()) as store:
        assert str(store.start(project=folder).project) == folder
        with pytest.raises(NotClean):
            store.start(project=f"{folder}/{SECRET}")
        with pytest.raises(NotClean):
            store.ensure("alice@corp.com")


def test_errors_about_fields_and_files_show_nothing_of_them(store: hitherto.Store, outside: Path) -> None:
    records = Records(store)
    for given in ({"summary": {SECRET: 1}}, {"messages": [{SECRET: 1}]}, {"participants": [{SECRET: 1}]}):
        with pytest.raises(InvalidArgument) as caught:
            records.create(**given)
        assert SECRET not in f"{caught.value} {caught.value.hint}"
    with hitherto.open("memory:") as other:
        talk = other.start()
        ids = [talk.append(Message.user(text)).id for text in "xy"]
        formats.save([talk], outside / "x.jsonl")
    lines = (outside / "x.jsonl").read_text()
    (outside / "x.jsonl").write_text(lines.replace(ids[0], SECRET).replace(ids[1], SECRET))
    with pytest.raises(PartialImport, match="has the id of another") as partial:
        formats.load(outside / "x.jsonl", store)
    assert SECRET not in f"{partial.value} {partial.value.hint} {partial.value.report}"


# -- what was cleaned before


def test_a_history_is_cleaned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cleaning a whole history of a few megabytes with each request would take a second."""
    calls: list[str] = []
    clean = Sanitiser.clean

    def counted(self: Sanitiser, text: str, **more: Any) -> Any:
        calls.append(text)
        return clean(self, text, **more)

    monkeypatch.setattr(Sanitiser, "clean", counted)
    ours = redactor()
    turns = [Message.user(f"{n}: x", raw={"content": [SECRET, n]}) for n in range(20)]
    history = [m for turn in turns for m in (turn, Message.assistant("fine"))]
    first = ours.messages(history)
    as_it_was = copy.deepcopy(first)
    first[2].raw["content"].append(SECRET)  # type: ignore[index]  # what is remembered is not what is given out
    calls.clear()
    again = ours.messages([*history, Message.user(f"new {SECRET}")])
    assert again[:-1] == as_it_was
    assert SECRET not in repr(again)
    assert f"new {SECRET}" in calls
    assert not {f"{n}: x" for n in range(20)} & set(calls)
    again[2].raw["content"].append(SECRET)  # type: ignore[index]  # nor what it was before
    assert ours.messages(history) == as_it_was


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from hitherto.sanitiser import redactor as _redaction

    monkeypatch.setattr(_redaction, "_MAX_BYTES", 10_000)
    ours = redactor()
    for n in range(300):
        assert ours.message(Message.user(SECRET)) == ours.messages([Message.user(SECRET)])[0]
        assert SECRET not in repr(ours.messages([Message.user(f"{n} {SECRET} {'x' * 50}")]))
    assert ours._cache._size <= 10_000
    assert 10 < len(ours._cache._entries) < 60
    assert SECRET not in repr(ours._cache._entries)


# -- values that stand again

VALUE = "Kohlrabi-77-Xq"


def test_a_value_that_was_found_goes_from_all_of_its_message() -> None:
    said = Message.assistant(
        [
            Block.text(f"password: {VALUE}"),
            Block.text(f"so log in with {VALUE}"),
            Block.tool_call("c", "run", {"a": VALUE}),
        ],
        raw={"content": [{"text": VALUE}], "note": f"uses {VALUE}"},
        extra={"seen": VALUE},
    )
    cleaned = redactor().message(said)
    assert VALUE not in repr(cleaned)
    assert cleaned.privacy is not None
    assert len(cleaned.privacy["hashes"]) == 1  # type: ignore[arg-type]  # a list
    assert VALUE in repr(redactor().message(Message.assistant(f"so log in with {VALUE}")))  # the control


@pytest.mark.parametrize("verb", ["extend", "save"])
def test_a_value_that_was_found_goes_from_all_messages_of_one_write(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    messages = [
        Message.user(f"I think it is {VALUE}"),
        Message.user(f"yes, password: {VALUE}"),
        Message.assistant(f"Then {VALUE} is it."),
    ]
    with hitherto.open(path, sanitiser=Sanitiser.secrets()) as store:
        if verb == "extend":
            store.start().extend(messages)
        else:
            store.save(messages)
    assert not any(VALUE.encode() in file.read_bytes() for file in tmp_path.iterdir())


def test_a_file_is_kept_without_the_values_that_were_found_anywhere_in_it(tmp_path: Path) -> None:
    text = f"first {VALUE}\n" + "filler line\n" * 20_000 + f"password: {VALUE}\n" + "filler line\n" * 20_000 + VALUE
    (tmp_path / "log.txt").write_text(text)
    attachment = hitherto.attachment.Attachment.from_file(tmp_path / "log.txt")
    with hitherto.open("memory:", sanitiser=Sanitiser.secrets()) as store:
        said = store.start().append(Message.user([Block("content", attachment, mime_type="text/plain")]))
        content = store.message(said.id).blocks[0].content
        kept = content if isinstance(content, str | bytes) else content.read()
        assert VALUE not in (kept if isinstance(kept, str) else kept.decode())
        assert len(kept) > 400_000


def test_what_holds_nothing_is_kept_as_it_was_written() -> None:
    """The same text in two places was once taken for a change, and the provider's JSON written anew."""
    text = '{"path": ".env",  "n": 1}'
    said = Message.assistant(text, raw={"role": "assistant", "content": text})
    assert redactor().message(said) is said
