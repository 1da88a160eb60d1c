"""`max_conversation_bytes`: a conversation that may not grow any more, and what is kept all the same.

Requirements: "A cap per conversation can be set", C10, D12.
"""

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import hitherto
from hitherto import Block, Conversation, Key, Message, Store, formats
from hitherto._engine import appending
from hitherto.chat import Client, Config, new_client
from hitherto.errors import ConversationFull, InvalidArgument
from hitherto.recorder import _recorded_conversation
from hitherto.records import Records

from ..support.provider import Provider, Reply, chat_answer, chat_events, provider

LIMIT = 10_000
LONG = "x" * 6000  # two of them do not fit


@pytest.fixture(params=["memory", "file", "sealed"])
def bounded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    place = "memory:" if request.param == "memory" else tmp_path / "store.db"
    key = Key.generate() if request.param == "sealed" else None
    with hitherto.open(place, key=key, max_conversation_bytes=LIMIT) as store:
        yield store
        assert store.verify().ok


def whole(store: Store) -> int:
    """How large the largest conversation is."""
    ids = [info._id for info in store.conversations(limit=100)]
    return max((row.size + store.backend.attached(row.id) for row in store.backend.lookup(ids=ids)), default=0)


def test_a_write_that_would_exceed_it_is_refused_and_nothing_is_kept(bounded: Store) -> None:
    talk = bounded.start()
    first = talk.append(Message.user(LONG))
    before = whole(bounded)
    with pytest.raises(ConversationFull) as refused:
        talk.append(Message.user(LONG))
    error = refused.value
    assert (error.conversation, error.limit) == (talk.id, LIMIT)
    assert LIMIT < error.size < LIMIT + 4000
    assert error.hint
    assert LONG not in str(error)
    assert whole(bounded) == before
    assert talk.at == first.id
    assert talk.append(Message.user("a little fits")).parent == first.id
    other = bounded.start()
    other.append(Message.user(LONG))


def test_the_limit_is_exact(bounded: Store) -> None:
    talk = bounded.start()
    talk.append(Message.user("x"))
    spare = LIMIT - whole(bounded)
    size_of_one = whole(bounded) - 1
    with pytest.raises(ConversationFull):
        talk.append(Message.user("y" * (spare - size_of_one + 3)))
    talk.append(Message.user("y" * (spare - size_of_one - 3)))  # a longer text has a longer header
    assert LIMIT - 8 < whole(bounded) <= LIMIT


def test_control_without_a_limit_it_grows() -> None:
    with hitherto.open("memory:") as store:
        talk = store.start()
        talk.append(Message.user(LONG))
        talk.append(Message.user(LONG))
        assert whole(store) > LIMIT


def _append(store: Store, talk: Conversation) -> object:
    return talk.append(Message.user(LONG))


def _extend(store: Store, talk: Conversation) -> object:
    return talk.extend([Message.user("one"), Message.user(LONG)])


def _save(store: Store, talk: Conversation) -> object:
    return store.save([Message.user(LONG)], conversation=talk)


def _fork(store: Store, talk: Conversation) -> object:
    return talk.fork(before=talk.thread()[0]).append(Message.user(LONG))


def _subagent(store: Store, talk: Conversation) -> object:
    return talk.subagent("a", "1").append(Message.user(LONG))


def _compact(store: Store, talk: Conversation) -> object:
    return talk.compact(LONG)


def _record(store: Store, talk: Conversation) -> object:
    return Records(store).update(talk.id, append_messages=[{"role": "user", "content": LONG}])


@pytest.mark.parametrize("way", [_append, _extend, _save, _fork, _subagent, _compact, _record])
def test_every_way_to_add_messages_is_bounded(bounded: Store, way: Callable[[Store, Conversation], object]) -> None:
    talk = bounded.start()
    talk.append(Message.user(LONG))
    row = bounded.backend.lookup(ids=[talk.state.id])[0]
    with pytest.raises(ConversationFull):
        way(bounded, talk)
    assert bounded.backend.lookup(ids=[talk.state.id])[0] == row


def test_every_way_to_begin_one_is_bounded(bounded: Store, tmp_path: Path) -> None:
    with pytest.raises(ConversationFull):
        bounded.save([Message.user(LONG), Message.assistant(LONG)])
    with hitherto.open("memory:") as large:
        talk = large.start(provider="openai", model="m")
        talk.extend([Message.user(LONG), Message.assistant(LONG)])
        with pytest.raises(ConversationFull):
            bounded.restore(talk.snapshot())
        formats.save(large, tmp_path / "large.jsonl")
    assert bounded.stats().conversations == 0
    assert bounded.backend.kinds() == ["workspace"]


def test_an_import_names_what_is_too_large_and_brings_the_rest(bounded: Store, tmp_path: Path) -> None:
    with hitherto.open("memory:") as large:
        for n, texts in enumerate((["a"], [LONG, LONG], ["b"])):
            large.start(title=f"t{n}").extend([Message.user(text) for text in texts])
        formats.save(large, tmp_path / "large.jsonl")
    with pytest.raises(hitherto.PartialImport) as partial:
        formats.load(tmp_path / "large.jsonl", bounded)
    report = partial.value.report
    assert isinstance(report, formats.Loaded)
    (problem,) = report.unreadable
    assert "the limit is 10,000" in problem.reason
    assert {info.title for info in bounded.conversations()} == {"t0", "t2"}


def test_a_file_that_has_grown_adds_nothing_where_it_would_be_too_large(bounded: Store, tmp_path: Path) -> None:
    with hitherto.open("memory:") as large:
        talk = large.start(title="grows")
        talk.append(Message.user(LONG))
        formats.save(large, tmp_path / "one.jsonl")
        talk.append(Message.user(LONG))
        formats.save(large, tmp_path / "two.jsonl")
    formats.load(tmp_path / "one.jsonl", bounded)
    with pytest.raises(hitherto.PartialImport):
        formats.load(tmp_path / "two.jsonl", bounded)
    assert bounded.stats().messages == 1


def test_a_copy_of_a_thread_is_bounded(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        talk = store.start()
        talk.extend([Message.user(LONG), Message.user(LONG)])
    with hitherto.open(tmp_path / "store.db", max_conversation_bytes=LIMIT) as store:
        with pytest.raises(ConversationFull):
            store.conversation(talk.id).detach()
        assert store.stats().conversations == 1
        short = store.conversation(talk.id).thread()[0]
        assert store.conversation(talk.id).fork(at=short).detach().count == 1


# -- attachments


def image(size: int, seed: int = 0) -> Message:
    return Message.user([Block.image(random.Random(seed).randbytes(size), "image/png")])


def test_attachments_count(tmp_path: Path) -> None:
    for key in (None, Key.generate()):
        place = tmp_path / f"{key is None}.db"
        with hitherto.open(place, key=key, max_conversation_bytes=300_000, maintenance=False) as store:
            talk = store.start()
            talk.append(image(200_000))
            before = whole(store)
            assert 200_000 < before < 210_000
            with pytest.raises(ConversationFull) as refused:
                talk.append(image(150_000, 1))
            assert 350_000 < refused.value.size < 360_000
            assert whole(store) == before  # and nothing is staged
            talk.append(image(200_000))  # the same once more: it is kept once
            assert whole(store) < 210_000
            talk.append(image(80_000, 2))
            assert whole(store) <= 300_000
            assert store.verify().ok


def test_a_large_file_is_refused_before_it_is_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte that does not fit is not staged first."""
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    with hitherto.open(tmp_path / "store.db", max_conversation_bytes=300_000) as store:
        talk = store.start()
        staged: list[object] = []
        monkeypatch.setattr(store.backend, "stage", lambda *given, **_: staged.append(given))
        with pytest.raises(ConversationFull):
            talk.append(Message.user([Block.image(hitherto.attachment.Attachment.from_file(large), "image/png")]))
        assert staged == []


def test_a_message_with_a_key_that_is_there_is_not_refused(bounded: Store) -> None:
    """C4: the same write again is no write."""
    talk = bounded.start()
    first = talk.append(Message.user(LONG, key="k"))
    assert bounded.conversation(talk.id).append(Message.user(LONG, key="k")).id == first.id


def test_what_removes_makes_room(bounded: Store) -> None:
    talk = bounded.start()
    first = talk.append(Message.user(LONG))
    with pytest.raises(ConversationFull):
        talk.append(Message.user(LONG))
    bounded.delete([first])
    bounded.conversation(talk.id).append(Message.user(LONG))


# -- writers that meet

_WRITER = """
import sys, hitherto
kept = 0
with hitherto.open(sys.argv[1], max_conversation_bytes=50_000) as store:
    for n in range(400):
        try:
            store.conversation(sys.argv[2]).append(hitherto.Message.user(sys.argv[3] * 500), on_conflict="follow")
            kept += 1
        except hitherto.ConversationFull:
            break
print(kept)
"""


def test_writers_that_meet_do_not_exceed_it_together(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with hitherto.open(path) as store:
        talk = store.start()
        command = [sys.executable, "-c", _WRITER, str(path), talk.id]
        writers = [subprocess.Popen([*command, letter], stdout=subprocess.PIPE, text=True) for letter in "abc"]
        kept = [int(writer.communicate(timeout=120)[0]) for writer in writers]
        assert [writer.returncode for writer in writers] == [0, 0, 0]
        assert store.stats().messages == sum(kept) > 50
        assert 49_000 < whole(store) <= 50_000


def test_threads_that_meet_do_not_exceed_it_together(bounded: Store) -> None:
    """One process prepares from what it believes: what is on its way counts."""
    talk = bounded.start()
    full = threading.Barrier(8)

    def write(letter: str) -> None:
        full.wait()
        handle = bounded.conversation(talk.id)
        for _ in range(20):
            try:
                handle.append(Message.user(letter * 200), on_conflict="follow")
            except ConversationFull:
                return

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert LIMIT - 300 < whole(bounded) <= LIMIT


# -- recorders


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def openai_at(server: Provider) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="k", max_retries=0)


@pytest.fixture
def talker() -> Iterator[Provider]:
    with provider(lambda _: chat_answer(LONG)) as server:
        yield server


@pytest.fixture
def sdk(talker: Provider) -> Iterator[openai.OpenAI]:
    with openai_at(talker) as client:
        yield client


def test_an_answer_that_was_heard_is_kept_and_the_next_question_is_refused(
    bounded: Store, talker: Provider, sdk: openai.OpenAI
) -> None:
    """D12, C10: and the model is not asked."""
    client = hitherto.record(sdk, bounded)
    history = [user("q" * 3000)]
    done = client.chat.completions.create(model="m", messages=history)
    assert done.choices[0].message.content == LONG
    assert whole(bounded) > LIMIT
    history += [{"role": "assistant", "content": LONG}, user("and now?")]
    with pytest.raises(ConversationFull):
        client.chat.completions.create(model="m", messages=history)
    assert len(talker.bodies) == 1
    latest = bounded.latest()
    assert latest is not None
    assert [m.role for m in latest.thread()] == ["user", "assistant"]


def test_a_stream_that_was_heard_is_kept_too(bounded: Store) -> None:
    with provider(lambda _: Reply(events=chat_events(LONG))) as server, openai_at(server) as sdk:
        client = hitherto.record(sdk, bounded)
        for _ in client.chat.completions.create(model="m", messages=[user("q" * 3000)], stream=True):
            pass
    latest = bounded.latest()
    assert latest is not None
    assert [len(m.text) for m in latest.thread()] == [3000, 6000]


def test_a_client_of_ours_refuses_the_next_question(bounded: Store, talker: Provider) -> None:
    client = new_client(Config("openai-compatible", "m", talker.url + "/v1", "k", allow_insecure_base_url=True))
    assert isinstance(client, Client)
    with client:
        hitherto.record(client, bounded).chat("q" * 3000)
        with pytest.raises(ConversationFull):
            client.chat("and now?")
    assert len(talker.bodies) == 1
    assert bounded.stats().messages == 2


def test_control_an_answer_that_is_bounded_is_lost(
    bounded: Store, sdk: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    extend = appending.extend_steps

    def bounded_too(*given: Any, **how: Any) -> Any:
        return extend(*given, **{**how, "is_bounded": True})

    monkeypatch.setattr(_recorded_conversation, "extend_steps", bounded_too)
    client = hitherto.record(sdk, bounded)
    client.chat.completions.create(model="m", messages=[user("q" * 3000)])
    assert bounded.stats().messages == 1


def test_a_first_question_that_is_too_large_begins_nothing(
    bounded: Store, talker: Provider, sdk: openai.OpenAI
) -> None:
    client = hitherto.record(sdk, bounded)
    with pytest.raises(ConversationFull):
        client.chat.completions.create(model="m", messages=[user("q" * 20_000)])
    assert (len(talker.bodies), bounded.stats().conversations) == (0, 0)


# -- how it is given


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "1", True])
def test_a_wrong_limit_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        hitherto.open("memory:", max_conversation_bytes=wrong)
