"""Search through the public API: what is found, in which order, what is forgotten, and what a kill or damage does.

Requirements: "Search" of the depth; C3 and D16 for what an index may keep.
"""

import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import apsw
import pytest

import hitherto
from hitherto import Block, Message, Store
from hitherto._engine import deleting, editing
from hitherto._search import timeline
from hitherto.backend import MessageRow
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.sqlite import SqliteBackend
from hitherto.errors import InvalidArgument, InvalidQuery
from hitherto.testing.toys import Contrary, ToyCodec
from tests.support.parts import search_of

KINDS = ("memory", "sqlite", "sealed", "contrary")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    ticks = count(1_700_000_000_000_000, 1_000_000)

    def clock() -> int:
        return next(ticks)

    made = {
        "memory": lambda: Store(MemoryBackend(), clock=clock),
        "sqlite": lambda: Store(SqliteBackend(tmp_path / "store.db"), clock=clock),
        "sealed": lambda: Store(SqliteBackend(tmp_path / "store.db"), ToyCodec(), clock=clock),
        "contrary": lambda: Store(Contrary(SqliteBackend(tmp_path / "store.db"), seed=5), clock=clock),
    }[request.param]()
    with made:
        yield made


def found(store: Store, query: str, **options: object) -> list[str]:
    """The texts of what is found."""
    hits = store.search(query, **options)  # type: ignore[arg-type]  # whatever a test wants to try
    return [store.message(hit.message_id).text for hit in hits]


def traces(folder: Path, word: str) -> list[str]:
    """The files that hold a word."""
    wanted = (word.encode(), word.encode("utf-16-le"))
    return [file.name for file in folder.iterdir() if file.is_file() and any(w in file.read_bytes() for w in wanted)]


def test_what_came_in_many_conversations_is_taken_in_by_time_and_some_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catch-up of a million messages may not hold a million headers."""
    monkeypatch.setattr(timeline, "HELD", 40)
    monkeypatch.setattr(timeline, "_SHORTEST", 2)
    store.start().append(Message.user("the first word"))
    store.search("word")
    talks = [store.start() for _ in range(4)]
    for n in range(60):
        talks[n * n % 4 if n < 40 else n % 3].append(Message.user(f"word {n}"))
    limits: list[int] = []
    scan = store.backend.scan

    def counting(conversation: bytes, *, limit: int, **how: Any) -> list[MessageRow]:
        limits.append(limit)
        return scan(conversation, limit=limit, **how)

    monkeypatch.setattr(store.backend, "scan", counting)
    heard: list[int] = []
    hits = store.search("word", limit=100, progress=heard.append)
    assert [hit.snippet for hit in hits] == [f"word {n}" for n in reversed(range(60))] + ["the first word"]
    assert heard[-1] == 60
    assert max(limits) <= 40


def test_words_phrases_and_beginnings_are_found_newest_first(store: Store) -> None:
    talk = store.start(title="Build")
    for text in ("the lint step fails", "a step that lints", "The LINT step, again", "nothing", "reindexing café"):
        talk.append(Message.user(text))
    assert found(store, "lint step") == ["The LINT step, again", "the lint step fails"]
    assert found(store, '"step that"') == ["a step that lints"]
    assert found(store, "lint*") == ["The LINT step, again", "a step that lints", "the lint step fails"]
    assert found(store, "again OR nothing") == ["nothing", "The LINT step, again"]
    assert found(store, "lint -again") == ["the lint step fails"]
    assert found(store, "CAFE") == ["reindexing café"]
    assert found(store, "absent") == []
    assert found(store, "step", limit=1) == ["The LINT step, again"]
    assert found(store, "step", limit=1, offset=2) == ["the lint step fails"]
    assert found(store, "step", offset=3) == []


def test_a_hit_says_where_and_shows_the_place(store: Store) -> None:
    talk = store.start()
    saved = talk.append(Message.assistant("x " * 500 + "here is the needle, see " + "y " * 500))
    (hit,) = store.search("needle")
    assert (hit.message_id, hit.conversation, hit.role) == (saved.id, talk.id, "assistant")
    assert hit.created_at == saved.created_at
    assert [hit.snippet[a:b] for a, b in hit.spans] == ["needle"]
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert len(hit.snippet) < 250


def test_what_is_said_after_a_search_is_found_by_the_next(store: Store) -> None:
    talk = store.start()
    for n in range(40):
        talk.append(Message.user(f"word{n}"))
        assert len(store.search(f"word{n}")) == 1
    assert len(store.search("word*", limit=100)) == 40


def test_filters_choose_role_conversation_project_and_time(store: Store, tmp_path: Path) -> None:
    one, two = store.start(project=tmp_path / "p"), store.start(project=tmp_path / "q")
    a = one.append(Message.user("common from a"))
    b = two.append(Message.assistant("common from b"))
    c = one.append(Message.assistant("common from c"))
    assert found(store, "common", role="assistant") == ["common from c", "common from b"]
    assert found(store, "common", conversation=two) == ["common from b"]
    assert found(store, "common", conversation=one.id[:8]) == ["common from c", "common from a"]
    assert found(store, "common", project=tmp_path / "p") == ["common from c", "common from a"]
    assert found(store, "common", project=tmp_path / "p", conversation=two) == []
    assert found(store, "common", project=tmp_path / "none") == []
    assert found(store, "common", since=b.created_at) == ["common from c", "common from b"]
    assert found(store, "common", until=b.created_at) == ["common from a"]
    assert found(store, "common", since=a.created_at, until=c.created_at + timedelta(seconds=1), role="user") == [
        "common from a"
    ]


def test_the_best_matches_come_first_if_asked(store: Store) -> None:
    talk = store.start()
    best = talk.append(Message.user("needle needle needle"))
    talk.append(Message.user("a needle in a haystack of many other words that have nothing to do with it at all"))
    hits = store.search("needle", order="best")
    assert hits[0].message_id == best.id
    assert hits[0].score > hits[1].score
    assert store.search("needle")[0].message_id != best.id


def test_languages_without_spaces_are_found(store: Store) -> None:
    talk = store.start()
    for text in ("今天天气很好,我们去公园", "彼女は図書館で勉強している", "ฉันรักภาษาไทยมาก", "한국어를 배워요"):
        talk.append(Message.user(text))
    for query, text in (("天气", "今天"), ("図書館", "彼女"), ("ภาษาไทย", "ฉัน"), ("한국어*", "한국")):
        (hit,) = found(store, query)
        assert hit.startswith(text)


def test_thoughts_tool_calls_and_results_are_found(store: Store) -> None:
    talk = store.start()
    talk.append(Message.assistant([Block.thinking("ponderously"), Block.tool_call("c1", "grep", {"for": "quixotic"})]))
    talk.append(Message.tool_result("c1", "found zanzibar"))
    talk.append(Message.user([Block.image(b"\0binary", "image/png"), Block.text("beside a picture")]))
    for word in ("ponderously", "quixotic", "zanzibar", "picture"):
        assert len(store.search(word)) == 1
    assert store.search("binary") == []


@pytest.mark.parametrize(
    "query", ['"unbalanced AND (', "", "   ", "???", "-only", "(a", "OR b", "a" * 1_000_000, 'x "', "\ud800", "NOT a"]
)
def test_a_malformed_query_is_a_clear_error(store: Store, query: str) -> None:
    store.start().append(Message.user("a b"))
    with pytest.raises(InvalidQuery) as caught:
        store.search(query)
    assert caught.value.hint
    assert len(str(caught.value)) < 300


def test_bad_arguments_are_refused(store: Store) -> None:
    for options in ({"limit": 0}, {"limit": True}, {"offset": -1}, {"since": datetime(2024, 1, 1)}, {"until": 5}):  # noqa: DTZ001
        with pytest.raises(InvalidArgument):
            store.search("a", **options)


def test_what_is_deleted_or_purged_is_not_found_any_more(store: Store) -> None:
    talk, other = store.start(), store.start()
    gone = talk.append(Message.user("vanishing one"))
    other.append(Message.user("vanishing two"))
    kept = store.start().append(Message.user("vanishing not"))
    assert len(store.search("vanishing")) == 3
    store.delete([gone])
    assert len(store.search("vanishing")) == 2
    store.purge(other, reason="user-requested")
    assert [hit.message_id for hit in store.search("vanishing")] == [kept.id]


def test_packed_messages_are_found_and_can_be_deleted(store: Store) -> None:
    talk = store.start()
    saved = [talk.append(Message.user(f"item{n} everywhere")) for n in range(70)]
    store.maintain()
    assert [hit.message_id for hit in store.search("item5")] == [saved[5].id]
    assert len(store.search("everywhere", limit=100)) == 70
    store.delete([saved[60]], recursive=True)
    assert len(store.search("everywhere", limit=100)) == 60
    talk.label("marked", message=saved[3])
    assert len(store.search("everywhere", limit=100)) == 60


def test_many_conversations_come_back_in_the_order_of_time(store: Store) -> None:
    talks = [store.start() for _ in range(7)]
    for n in range(100):
        talks[n * n % 7].append(Message.user(f"number {n}"))
        if n % 30 == 0:
            store.search("number")
    assert found(store, "number", limit=200) == [f"number {n}" for n in reversed(range(100))]


def test_a_conversation_that_expired_is_not_found(store: Store) -> None:
    from hitherto._engine.state import build_row_change

    store.engine.background.stop(1.0)  # it would sweep it
    talk = store.start()
    talk.append(Message.user("perishable"))
    assert len(store.search("perishable")) == 1
    store.engine.change(talk.state.id, lambda row: build_row_change(talk.state, row, expires_at=row.active_at + 1))
    assert store.search("perishable") == []
    assert len(store.search("perishable", include_expired=True)) == 1


# -- the files


def test_a_store_that_nobody_searches_has_no_index(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        store.start().append(Message.user("hello"))
        store.maintain()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store.db", "store.db-ballast"]


def test_a_sealed_store_keeps_no_words_on_the_disk(tmp_path: Path) -> None:
    with Store(SqliteBackend(tmp_path / "store.db"), ToyCodec()) as store:
        store.start().append(Message.user("confidential"))
        assert len(store.search("confidential")) == 1
        assert traces(tmp_path, "confidential") == []
        assert not (tmp_path / "store.db-search").exists()


def test_the_index_is_private_and_does_not_keep_the_text(tmp_path: Path) -> None:
    text = "several words in a row that make a sentence"
    with hitherto.open(tmp_path / "store.db") as store:
        store.start().append(Message.user(text))
        assert len(store.search("sentence")) == 1
    index = tmp_path / "store.db-search"
    assert index.stat().st_mode & 0o777 == 0o600
    assert text.encode() not in index.read_bytes()
    assert b"sentence" in index.read_bytes()  # the control: the word itself is there


@pytest.mark.parametrize("patience_seconds", [60.0, 0.0])
def test_deleting_takes_the_words_out_of_the_files(
    tmp_path: Path, patience_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With enough time before it returns; without any, maintenance does it soon, and nobody has to call for it."""
    for module in (deleting, editing):
        monkeypatch.setattr(module, "FORGET_SECONDS", patience_seconds)
    word = "zyxwvutmarker"
    with hitherto.open(tmp_path / "store.db") as store:
        talk = store.start()
        for n in range(200):
            talk.append(Message.user(f"question {n}"))
        secret = talk.append(Message.user(f"the {word} hides here"))
        assert len(store.search(word)) == 1
        assert "store.db-search" in {name.removesuffix("-wal") for name in traces(tmp_path, word)}  # the control
        store.delete([secret])
        deadline = time.monotonic() + (0 if patience_seconds else 60)
        while in_index := [name for name in traces(tmp_path, word) if "search" in name]:
            assert time.monotonic() < deadline, in_index
            time.sleep(0.01)
    assert traces(tmp_path, word) == []


def test_purging_takes_the_words_out_of_the_files_before_it_returns(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        talk = store.start()
        talk.append(Message.user("unmentionable matter"))
        store.start().append(Message.user("harmless"))
        store.search("unmentionable")
        report = store.purge(talk, reason="user-requested")
        assert not report.scrub_pending
        assert traces(tmp_path, "unmentionable") == []
        assert len(store.search("harmless")) == 1


def test_a_delete_by_a_process_that_was_killed_before_it_told_the_index_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with hitherto.open(path) as store:
        talk = store.start()
        saved = talk.append(Message.user("unforgettable"))
        purged = store.start()
        purged.append(Message.user("unpurgeable"))
        assert len(store.search("un*")) == 2
    program = """
        import os, sys, hitherto
        from hitherto._search import search
        search.Search.forget = lambda self, *_: os.kill(os.getpid(), 9)
        store = hitherto.open(sys.argv[1])
        store.delete([sys.argv[2]]) if sys.argv[3] == "delete" else store.purge(sys.argv[2], reason="user-requested")
    """
    for id, how, word in ((saved.id, "delete", "unforgettable"), (purged.id, "purge", "unpurgeable")):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), path, id, how], check=False, timeout=60)
        assert done.returncode == -9
        assert traces(tmp_path, word) != []  # the control: it was killed in time
    with hitherto.open(path) as store:
        assert store.search("un*") == []
        assert store.scrub()
        assert traces(tmp_path, "unforgettable") == []
        assert traces(tmp_path, "unpurgeable") == []


def test_a_kill_at_any_point_of_catching_up_loses_nothing(tmp_path: Path) -> None:
    """The process is killed after a few updates of the index; the next one goes on."""
    path = tmp_path / "store.db"
    with hitherto.open(path) as store:
        for n in range(6):
            store.start().extend([Message.user(f"talk{n} message{m} all") for m in range(300)])
    program = """
        import os, sys, hitherto
        from hitherto.backends.sqlite.fts import FtsIndex
        calls, real = [], FtsIndex.update
        def update(self, *args, **kwargs):
            result = real(self, *args, **kwargs)
            calls.append(1)
            if len(calls) == int(sys.argv[2]):
                os.kill(os.getpid(), 9)
            return result
        FtsIndex.update = update
        hitherto.open(sys.argv[1]).search("all")
    """
    for kills in (1, 1, 1):
        command = [sys.executable, "-c", textwrap.dedent(program), str(path), str(kills)]
        assert subprocess.run(command, check=False, timeout=60).returncode == -9
    with hitherto.open(path) as store:
        assert len(store.search("all", limit=10_000)) == 1800
        assert len(store.search("talk3 message299")) == 1
        assert found(store, "all", limit=1) == ["talk5 message299 all"]


def test_processes_and_threads_that_search_and_write_at_once_find_everything(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    program = """
        import sys, hitherto
        from hitherto import Message
        with hitherto.open(sys.argv[1]) as store:
            talk = store.start()
            for n in range(60):
                talk.append(Message.user(f"{sys.argv[2]}x{n} shared"))
                if n % 7 == 0:
                    assert len(store.search(f"{sys.argv[2]}x{n}")) == 1, n
                if n % 20 == 10:
                    gone = talk.append(Message.user("fleeting"))
                    store.search("fleeting")
                    store.delete([gone])
                    talk = store.conversation(talk.id)
    """
    hitherto.open(path).close()
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    running = [subprocess.Popen([*command, name]) for name in ("alpha", "beta", "gamma")]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    with hitherto.open(path) as store:
        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda: counts.append(len(store.search("shared", limit=1000)))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [180] * 6
        assert store.search("fleeting") == []
        assert store.scrub()
    assert traces(tmp_path, "fleeting") == []


@pytest.mark.parametrize("damage", ["flip", "cut", "magic", "zeros"])
def test_a_damaged_index_is_made_again_and_said_so(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, index = tmp_path / "store.db", tmp_path / "store.db-search"
    with hitherto.open(path) as store:
        talk = store.start()
        for n in range(300):
            talk.append(Message.user(f"word{n} everywhere"))
        assert len(store.search("everywhere", limit=1000)) == 300
    data = bytearray(index.read_bytes())
    if damage == "flip":
        for place in range(4096 * 3, len(data), 97):
            data[place] ^= 0xFF
    elif damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "magic":
        data[:16] = os.urandom(16)
    else:
        data = bytearray(len(data))
    index.write_bytes(data)
    with caplog.at_level(logging.WARNING, logger="hitherto"), hitherto.open(path) as store:
        assert len(store.search("everywhere", limit=1000)) == 300
        assert len(store.search("word17")) == 1
        assert store.verify().ok
    assert any("search index" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("content", [b"no database", os.urandom(20_000)], ids=["short", "noise"])
def test_a_file_that_is_not_an_index_is_left_alone_until_its_owner_removes_it(tmp_path: Path, content: bytes) -> None:
    path, index = tmp_path / "store.db", tmp_path / "store.db-search"
    with hitherto.open(path) as store:
        store.start().append(Message.user("everywhere"))
        index.write_bytes(content)
        with pytest.raises(hitherto.NotAStore, match="not a search index"):
            store.search("everywhere")
        assert index.read_bytes() == content
        index.unlink()
        assert len(store.search("everywhere")) == 1


def test_an_index_of_another_copy_of_the_store_is_not_believed(tmp_path: Path) -> None:
    """A backup is put back while the index is of later: what was said meanwhile must not be found, and what is said
    from then on must be."""
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    with hitherto.open(path) as store:
        talk = store.start()
        talk.append(Message.user("before"))
        store.search("before")
        store.backup(copy)
        talk.append(Message.user("afterwards"))
        assert len(store.search("afterwards")) == 1
    shutil.copyfile(copy, path)
    with hitherto.open(path) as store:
        assert store.search("afterwards") == []
        assert len(store.search("before")) == 1
        store.conversation(talk.id).append(Message.user("anew"))
        assert len(store.search("anew")) == 1


def test_maintenance_keeps_the_index_up_to_date(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        talk = store.start()
        talk.append(Message.user("first"))
        store.search("first")
        for n in range(50):
            talk.append(Message.user(f"later {n}"))
        done = store.maintain()
        assert done.indexed == 50
        assert done.complete
        assert store.maintain().indexed == 0


def test_time_limits_of_maintenance_leave_the_rest_for_later(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db") as store:
        talk = store.start()
        talk.append(Message.user("first"))
        store.search("first")
        talk.extend([Message.user(f"later {n}") for n in range(3000)])
        done = store.maintain(seconds=0)
        assert not done.complete
        while not store.maintain(seconds=0.05).complete:
            pass
        assert len(store.search("later", limit=5000)) == 3000


def test_the_clock_that_jumps_back_hides_nothing(tmp_path: Path) -> None:
    ticks = iter([*range(10_000_000, 10_000_100), *range(1_000, 1_000_000)])
    with hitherto.open(tmp_path / "store.db", clock=lambda: next(ticks)) as store:
        for n in range(60):
            store.start().append(Message.user(f"jump{n}"))
            assert len(store.search(f"jump{n}")) == 1
        assert datetime.now(UTC).year > 2000


def test_an_index_that_an_earlier_store_left_behind_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with hitherto.open(path) as store, hitherto.open(path, workspace="other") as other:
        store.start().append(Message.user("heirloom"))
        other.start().append(Message.user("neighbour"))
        assert len(store.search("heirloom")) == len(other.search("neighbour")) == 1
    with hitherto.open(path) as store:
        assert len(store.search("heirloom")) == 1
        assert store.search("neighbour") == []  # of another workspace, which is kept
    with hitherto.open(path, workspace="other") as other:
        assert len(other.search("neighbour")) == 1
    path.unlink()
    with hitherto.open(path) as store:
        store.start().append(Message.user("new"))
        assert store.search("heirloom") == []
    assert traces(tmp_path, "heirloom") == []
    assert traces(tmp_path, "neighbour") == []


def test_trouble_with_the_index_does_not_fail_what_was_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import apsw

    path = tmp_path / "store.db"
    foreign = apsw.Connection(f"{path}-search")
    foreign.execute("CREATE TABLE theirs (x)")
    foreign.close()
    with caplog.at_level(logging.WARNING, logger="hitherto"), hitherto.open(path) as store:
        talk = store.start()
        saved = talk.append(Message.user("x"))
        with pytest.raises(hitherto.NotAStore):
            store.search("x")
        assert store.delete([saved]) == [saved.id]
        assert store.purge(talk, reason="user-requested").scrub_pending
    assert any("search index" in record.getMessage() for record in caplog.records)
    assert apsw.Connection(f"{path}-search").execute("SELECT count(*) FROM theirs").fetchall() == [(0,)]


# -- feeding, step by step


def test_an_id_that_is_used_again_is_found_although_the_index_never_heard_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge was not told to the index; more messages follow than are taken in at a time."""
    id = "00000000-0000-4000-8000-000000000001"
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        store.start(id=id).append(Message.user("former"))
        assert len(store.search("former")) == 1
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        monkeypatch.setattr(store.engine.search, "forget", lambda _: False)
        store.purge(id, reason="user-requested")
        store.start(id=id).extend([Message.user(f"latter {n}") for n in range(1300)])
        assert len(store.search("latter", limit=2000)) == 1300
        assert store.search("former") == []


def test_what_is_deleted_while_the_index_is_half_fed_leaves_no_words(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        store.start().append(Message.user("hello"))
        store.search("hello")
        talk = store.start()
        root = talk.append(Message.user("root"))
        secret = talk.append(Message.user("secretword"))
        talk.fork(root).extend([Message.user(f"text {n}") for n in range(1500)])
        assert not store.maintain(seconds=0).complete
        assert [name for name in traces(tmp_path, "secretword") if "search" in name] != []  # the control
        store.delete([secret])
        assert store.scrub()
        assert [name for name in traces(tmp_path, "secretword") if "search" in name] == []


def test_what_is_purged_while_the_first_feed_is_interrupted_leaves_no_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hitherto._search.search import Search

    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("secretword"))
        store.start().extend([Message.user(f"text {n}") for n in range(1500)])
        entry, met = Search._entry, count(1)

        def interrupted(self: Search, *args: object) -> object:
            if next(met) == 600:
                raise KeyboardInterrupt
            return entry(self, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(Search, "_entry", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.search("text")
        monkeypatch.setattr(Search, "_entry", entry)
        assert [name for name in traces(tmp_path, "secretword") if "search" in name] != []  # the control
        store.purge(talk, reason="user-requested")
        assert store.scrub()
        assert [name for name in traces(tmp_path, "secretword") if "search" in name] == []


def test_feeding_in_many_slices_keeps_its_position_and_takes_each_message_in_once(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        talk = store.start()
        talk.append(Message.user("first"))
        store.search("first")
        for _ in range(4):
            talk.extend([Message.user("x" * 4) for _ in range(10_000)])
        taken, slices, complete = 0, 0, False
        while not complete:
            taken_now, complete = store.engine.search.keep_up(0.0)
            taken, slices = taken + taken_now, slices + 1
        assert taken == 40_000
        assert slices > 64  # more than there are positions that are remembered


def test_an_index_is_begun_again_while_others_have_it_open(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with hitherto.open(path) as one, hitherto.open(path) as two, hitherto.open(path, workspace="w") as three:
        talk = one.start()
        talk.append(Message.user("secretword"))
        three.start().append(Message.user("elsewhere"))
        for store in (one, two):
            assert len(store.search("secretword")) == 1
        assert len(three.search("elsewhere")) == 1
        backend = one.backend
        assert isinstance(backend, SqliteBackend)
        with backend._connection() as connection:
            connection.execute("DELETE FROM mark")  # as in a copy
        assert len(one.search("secretword")) == len(two.search("secretword")) == len(three.search("elsewhere")) == 1
        assert not one.purge(talk, reason="user-requested").scrub_pending
        assert [name for name in traces(tmp_path, "secretword") if "search" in name] == []
        assert two.search("secretword") == []


def test_a_delete_does_not_wait_for_another_thread_that_feeds(tmp_path: Path) -> None:
    with hitherto.open(tmp_path / "store.db", maintenance=False) as store:
        saved = store.start().append(Message.user("x"))
        store.search("x")
        with search_of(store)._feeding:
            assert store.delete([saved]) == [saved.id]
        assert store.search("x") == []


def test_text_in_an_attachment_is_found(store: Store) -> None:
    text = hitherto.attachment.Attachment(9, lambda: iter((b"hippo", b"drom")), text=True)
    store.start().append(Message.user(Block("content", text)))
    assert len(store.search("hippodrom")) == 1


@pytest.mark.parametrize("beside", ["", "-search"])
def test_a_scrub_waits_for_a_reader_that_is_done_in_a_moment(
    tmp_path: Path, beside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maintenance thread of the same store is such a reader. The control: without patience it is in the way."""
    path = tmp_path / "store.db"
    reader_done = threading.Event()

    def read_for_a_moment(seconds: float) -> threading.Thread:
        reader = apsw.Connection(f"{path}{beside}")
        reader.execute("BEGIN; SELECT count(*) FROM sqlite_schema").fetchall()

        def end() -> None:
            reader_done.wait(seconds)
            reader.close()

        thread = threading.Thread(target=end)
        thread.start()
        return thread

    with hitherto.open(path, maintenance=False) as store:
        talks = [store.start() for _ in range(2)]
        for talk in talks:
            talk.append(Message.user("unforgettable"))
        assert len(store.search("unforgettable")) == 2
        thread = read_for_a_moment(0.3)
        store.purge(talks[0], reason="user-requested")
        assert store.scrub()
        thread.join()
        with monkeypatch.context() as patch:
            patch.setattr("hitherto._erasure.maintenance._SCRUB_PATIENCE_SECONDS", 0.0)
            thread = read_for_a_moment(30)
            store.purge(talks[1], reason="user-requested")
            assert not store.scrub()
            reader_done.set()
            thread.join()
        assert store.scrub()
        assert traces(tmp_path, "unforgettable") == []
