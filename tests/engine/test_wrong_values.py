"""Wrong values outside of a store get errors of ours, and no error repeats all of what was given.

Requirements: C4, D19, and the rules for errors in STYLE.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Block, Conversation, HithertoError, Key, Message, Sanitiser, Store, formats
from hitherto.attachment import Attachment
from hitherto.backends.postgres.address import Address
from hitherto.errors import InvalidArgument, InvalidMessage, shorten
from hitherto.records import Records
from hitherto.sanitiser import Rule

from ..support.command import World

LONG = "x" * 100_000
PATHS = {"a name": LONG, "a path": f"/tmp/{LONG}", "folders": "/tmp/" + "y/" * 50_000}


# -- content


def test_an_assistant_that_says_nothing_is_taken() -> None:
    """OpenAI's content beside tool calls is null."""
    message = Message.assistant(None, raw={"role": "assistant", "content": None, "tool_calls": []})
    assert (message.text, message.blocks) == ("", ())
    with hitherto.open("memory:") as store:
        talk = store.start()
        talk.append(Message.user("hello"))
        talk.append(message)
        assert [m.text for m in talk.thread()] == ["hello", ""]
        assert talk.thread()[1].raw == message.raw


@pytest.mark.parametrize("content", [5, b"bytes", {"type": "text"}, object(), 1.5])
def test_what_is_no_content_is_refused(content: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: Message.user(content),
        lambda: Message.assistant(content),
        lambda: Message.tool_result("c1", content),
    ]
    for call in calls:
        with pytest.raises(InvalidMessage):
            call()
    for call in (lambda: Message.user(None), lambda: Message.tool_result("c1", None)):  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage):
            call()
    assert Message.user([Block.text("a"), Block.text("b")]).text == "ab"
    assert Message.user(Block.text(word) for word in "ab").text == "ab"


# -- paths, threads, rules


def test_a_path_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with hitherto.open("memory:") as store:
        for path in ("\ud800", "\ud800.jsonl", str(tmp_path / "\udfff.jsonl\ud800")):
            with pytest.raises(InvalidArgument):
                formats.load(path, store)
            with pytest.raises(InvalidArgument):
                formats.sniff(path)
            with pytest.raises(InvalidArgument):
                formats.save(store, path)
    assert list(tmp_path.iterdir()) == []


NOWHERE = {
    "a part too long": f"{'a' * 64}/x",
    "much too long": f"{LONG}/x",
    "an empty part": "a..b/x",
    "half a pair": "h\ud800/x",
    "half a pair in a name": "127.0.0.1:1/\ud800",
    "by a parameter": f"/x?host={'a' * 64}",
    "the second of two": f"127.0.0.1,{'a' * 64}/x",
}


@pytest.mark.parametrize("address", NOWHERE.values(), ids=NOWHERE.keys())
def test_an_address_that_no_server_can_have_is_refused(address: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        hitherto.open(f"postgresql://{address}")
    assert refused.value.hint


def test_control_other_addresses_are_taken() -> None:
    names = [f"{'a' * 63}.example.", "bücher.example", "[fe80::1%25lo]", f"%2F{'a' * 100}", "%40socket", "", "a,b"]
    for host in names:
        assert Address(f"postgresql://{host}/x").hosts


@pytest.mark.parametrize("other", [None, "text", 5, object(), []])
def test_only_conversations_are_compared(other: Any) -> None:
    with hitherto.open("memory:") as store:
        talk = store.start()
        talk.append(Message.user("hello"))
        for pair in ((other, talk), (talk, other)):
            with pytest.raises(InvalidArgument, match="conversation is wanted"):
                hitherto.compare(*pair)
        assert len(hitherto.compare(talk, talk).shared) == 1


def test_an_async_conversation_is_compared_by_its_sync() -> None:
    async def run() -> None:
        async with hitherto.open_async("memory:") as store:
            talk = await store.start()
            await talk.append(Message.user("hello"))
            with pytest.raises(InvalidArgument, match="AsyncConversation"):
                hitherto.compare(talk, talk)  # type: ignore[arg-type]  # on purpose
            assert len(hitherto.compare(talk.sync, talk.sync).shared) == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    "given",
    [
        {"name": None},
        {"family": None},
        {"pattern": None},
        {"pattern": b"x"},
        {"keywords": ["x"]},
        {"keywords": (5,)},
        {"keywords": "x"},
        {"group": "1"},
        {"group": True},
        {"entropy": "3"},
        {"check": None},
        {"not_": (None,)},
        {"secret": None},
    ],
    ids=str,
)
def test_what_is_no_rule_is_refused_where_it_is_made(given: Any) -> None:
    with pytest.raises(InvalidArgument):
        Rule(**{"name": "own-rule", "family": "own", "pattern": "x+", **given})
    assert Sanitiser.everything().adding(Rule("own-rule", "own", "x+")).rules[-1].name == "own-rule"


def test_rules_are_added_and_left_out_by_what_they_are() -> None:
    everything = Sanitiser.everything()
    others: list[Any] = [[], None, {}, 5, b"email"]
    for wrong in others:
        with pytest.raises(InvalidArgument):
            everything.without(wrong)
        with pytest.raises(InvalidArgument):
            everything.adding(wrong)
    others = [None, 5, Rule("own-rule", "own", "x+"), ["secrets"], [None]]
    for wrong in others:
        with pytest.raises(InvalidArgument):
            Sanitiser(wrong)
    assert Sanitiser(iter(everything.rules)).rules == everything.rules  # the control
    name = everything.rules[0].name
    assert name not in [rule.name for rule in everything.without(name).rules]
    assert everything.without().rules == everything.rules


# -- how much an error repeats


def takers(store: Store, talk: Conversation, given: str) -> dict[str, Callable[[], object]]:
    """Calls that refuse a long text."""
    return {
        "open": lambda: hitherto.open(given),
        "open to read": lambda: hitherto.open(given, read_only=True),
        "a key file": lambda: Key.from_file(given),
        "copy from": lambda: hitherto.copying.copy_store(given, "memory:"),
        "copy to": lambda: hitherto.copying.copy_store(store, given),
        "load": lambda: formats.load(given, store),
        "save": lambda: formats.save(store, f"{given}.jsonl"),
        "format": lambda: formats.save(store, "out", format=given),
        "backup": lambda: store.backup(given),
        "attach": lambda: Attachment.from_file(given),
        "save an attachment": lambda: Attachment(1, lambda: iter((b"x",))).save(given),
        "conversation": lambda: store.conversation(given),
        "message": lambda: store.message(given),
        "reason": lambda: store.purge(talk, reason=given),
        "cursor": lambda: store.conversations(cursor=given),
        "role": lambda: talk.append(Message(given, (Block.text("x"),))),
        "attachments": lambda: talk.thread(attachments=given),  # type: ignore[arg-type]  # on purpose
        "record": lambda: Records(store).create(given),
        "field": lambda: Records(store).create(metrics={given: 1}),
        "rule": lambda: Sanitiser.everything().without(given),
    }


@pytest.mark.parametrize("given", PATHS.values(), ids=PATHS.keys())
def test_no_error_repeats_all_of_what_was_given(tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with hitherto.open(tmp_path / "s.db", maintenance=False) as store:
        talk = store.start()
        for name, call in takers(store, talk, given).items():
            with pytest.raises(HithertoError) as caught:
                call()
            assert max(len(str(caught.value)), len(caught.value.hint or "")) <= 1000, name


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    error = HithertoError(f"cannot open {LONG}: File name too long", hint=f"look at {LONG}")
    assert str(error).startswith("cannot open xxx")
    assert str(error).endswith("xxx: File name too long")
    assert len(str(error)) == len(error.hint or "") == 1000
    assert shorten("short") == "short"
    assert shorten("a" * 1000) == "a" * 1000
    assert len(shorten("a" * 1001)) == 1000
    assert shorten("abcdefghijklmnop", 11) == "abcdef...op"


def test_the_command_line_repeats_no_more(world: World) -> None:
    for given in (["import", LONG], [f"nosuch{LONG}"], ["--store", LONG, "list"], ["log", LONG]):
        done = world.command(*given)
        assert done.returncode != 0
        assert len(done.stderr) < 2500, given[0]
