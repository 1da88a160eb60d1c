"""Importing files of other programs by identity: what every importer gets from the seam.

Requirements: F1, F2, D10. The importer here is a toy: its files are lines of `id parent text`.
"""

import json
import os
import threading
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Block, Conversation, Key, Message, Store, formats
from hitherto.errors import Damaged, InvalidArgument, PartialImport
from hitherto.formats import PortableConversation, PortableMessage, Source, SourceRecord, _registry
from hitherto.formats._files import Files
from hitherto.formats._importer import Importer, Line, chain_id, lines, parts, storable, time_us
from hitherto.formats._types import Found
from hitherto.retention import RetentionPolicy

from ..support.databases import new_database

OLD = 1_600_000_000_000_000  # microseconds: in 2020


class Toy(Importer):
    """One file is one session; `forked` names the session that it was copied from."""

    name = "toy"

    def recognises(self, source: Source) -> str | None:
        return "its lines have a toy" if source.head.startswith(b'{"toy"') else None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        for name in names:
            found: list[PortableMessage | SourceRecord] = []
            session, forked, title = "", "", ""
            for line in lines(files, name):
                if not isinstance(line, Line):
                    yield line
                    continue
                one = line.record
                session, forked = str(one["toy"]), str(one.get("forked", forked))
                title = str(one.get("title", title))
                if "text" in one:
                    found.append(message(one, line.number))
                else:
                    found.append(SourceRecord(type=str(one["type"]), data=one, known=one["type"] == "mood"))
            talk = PortableConversation(
                id=session, by_id=True, aliases=(forked,) if forked else (), title=title, metadata={"source": "toy"}
            )
            yield from parts(talk, found)


def message(one: dict[str, Any], number: int) -> PortableMessage:
    role = "assistant" if one["text"].startswith("A:") else "user"
    return PortableMessage(
        id=one["id"], parent=one.get("parent"), link=one.get("link"), main=not one.get("side", False),
        also=tuple(one.get("also", ())), created_us=OLD + number * 1_000_000,
        message=Message(role, (Block.text(one["text"]),), label=one.get("label"), extra={"native": {"n": number}}),
    )  # fmt: skip


def line(id: str, parent: str | None = None, text: str | None = None, toy: str = "s1", **more: object) -> str:
    return json.dumps({"toy": toy, "id": id, "parent": parent, "text": text or id, **more})


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    formats.register(Toy())
    yield
    _registry._added.clear()


@pytest.fixture(params=["memory", "sqlite", "sealed", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    where: dict[str, tuple[Any, Key | None]] = {
        "memory": ("memory:", None),
        "sqlite": (tmp_path / "a.db", None),
        "sealed": (tmp_path / "a.db", Key.generate()),
    }
    place = where.get(request.param) or (new_database().url(), None)
    with hitherto.open(place[0], key=place[1]) as store:
        yield store


@pytest.fixture
def plain() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


def put(path: Path, *texts: str, end: str = "\n") -> Path:
    path.write_text("\n".join(texts) + end)
    return path


def tree(store: Store) -> set[tuple[str, ...]]:
    """The texts of every thread, from its root to its leaf."""
    found = set()
    for info in store.conversations(limit=100):
        talk = store.conversation(info.id)
        for leaf in talk.branches():
            found.add(tuple(m.text for m in talk.fork(at=leaf.id).thread()))
    return found


def newest(store: Store) -> Conversation:
    talk = store.latest()
    assert talk is not None
    return talk


FORK = [line("1"), line("2", "1"), line("3", "2"), line("4", "2")]


def test_a_file_comes_in_once_and_what_it_grew_by_comes_after(store: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", *FORK)
    report = formats.load(path, store)
    assert (report.new, report.messages, report.leaves) == (1, 4, 2)
    assert tree(store) == {("1", "2", "3"), ("1", "2", "4")}
    again = formats.load(path, store)
    assert (again.new, again.messages, again.known, again.unchanged) == (0, 0, 4, 1)
    put(path, *FORK, line("5", "3"), line("6", "5"))
    grown = formats.load(path, store)
    assert (grown.messages, grown.known, len(grown)) == (2, 4, 1)
    assert tree(store) == {("1", "2", "3", "5", "6"), ("1", "2", "4")}
    assert store.verify().ok


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_fork_in_another_file_is_a_branch_whichever_comes_first(
    store: Store, order: tuple[int, int], tmp_path: Path
) -> None:
    files = [
        put(tmp_path / "parent", line("1"), line("2", "1"), line("3", "2")),
        put(tmp_path / "child", line("1", toy="s2", forked="s1"), line("2", "1", toy="s2"), line("9", "2", toy="s2")),
    ]
    for n in order:
        formats.load(files[n], store)
    assert tree(store) == {("1", "2", "3"), ("1", "2", "9")}
    assert store.stats().messages == 4


def test_without_the_alias_the_copy_would_be_a_second_conversation(plain: Store, tmp_path: Path) -> None:
    """The control of the test before."""
    formats.load(put(tmp_path / "parent", line("1"), line("2", "1")), plain)
    formats.load(put(tmp_path / "child", line("1", toy="s2"), line("2", "1", toy="s2")), plain)
    assert plain.stats().messages == 4


def test_what_was_purged_or_deleted_here_stays_away(store: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", *FORK)
    fork = put(tmp_path / "f", line("1", toy="s2", forked="s1"), line("8", "1", toy="s2"))
    formats.load(path, store)
    store.purge(newest(store), reason="user-requested")
    report = formats.load(path, store)
    assert (report.purged, report.messages, store.stats().messages) == (1, 0, 0)
    assert formats.load(fork, store).purged == 1
    assert formats.load(path, store, dry_run=True).purged == 1
    report = formats.load(path, store, even_purged=True)
    assert (report.new, report.messages) == (1, 4)
    assert formats.load(path, store).known == 4


def test_a_swept_conversation_stays_away(plain: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", *FORK)
    formats.load(path, plain)
    later = datetime.now(UTC) + timedelta(days=31)
    assert plain.sweep(RetentionPolicy(days=30), now=later).purged_count == 1
    assert formats.load(path, plain).purged == 1


def test_a_deleted_message_stays_away_and_what_answers_it_goes_above(store: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", line("1"), line("2", "1"), line("3", "2"))
    formats.load(path, store)
    talk = newest(store)
    store.delete([talk.thread()[1].id], recursive=True)
    put(path, line("1"), line("2", "1"), line("3", "2"), line("4", "3"))
    report = formats.load(path, store)
    assert report.messages == 1
    assert tree(store) == {("1", "4")}


def test_no_trace_of_what_was_purged_is_left(tmp_path: Path) -> None:
    secret = "5e551011-dead-4000-8000-0123456789ab"
    path = put(tmp_path / "s", line("1", text="hidden words", toy=secret))
    with hitherto.open(tmp_path / "a.db") as store:
        formats.load(path, store)
        store.purge(newest(store), reason="user-requested")
        store.backend.scrub()
    left = b"".join(file.read_bytes() for file in tmp_path.glob("a.db*"))
    for trace in (b"hidden words", secret.encode(), bytes.fromhex(secret.replace("-", ""))):
        assert trace not in left


def test_retention_counts_from_the_import(store: Store, tmp_path: Path) -> None:
    formats.load(put(tmp_path / "s", *FORK), store)
    policy, now = RetentionPolicy(days=30), datetime.now(UTC)
    assert store.conversations().items[0].active_at.year == 2020  # it is listed by when it was said
    plan = store.plan_sweep(policy)
    assert [(item.action, item.reason) for item in plan.items] == [("keep", "imported")]
    assert store.sweep(policy).purged_count == 0
    assert store.sweep(policy, now=now + timedelta(days=29)).purged_count == 0
    assert store.sweep(policy, now=now + timedelta(days=31)).purged_count == 1


def test_by_the_policy_of_the_store_too(plain: Store, tmp_path: Path) -> None:
    plain.set_retention(RetentionPolicy(days=30))
    formats.load(put(tmp_path / "s", *FORK), plain)
    assert plain.sweep().purged_count == 0
    assert plain.stats().messages == 4


def test_half_a_last_line_waits_and_is_no_failure(plain: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", *FORK, line("5", "4")[:20], end="")
    report = formats.load(path, plain)
    assert report.messages == 4
    assert [one.name for one in report.waiting] == ["s"]
    put(path, *FORK, line("5", "4"))
    assert formats.load(path, plain).messages == 1


def test_a_broken_line_in_the_middle_is_reported_and_the_rest_comes(plain: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", line("1"), '{"toy', line("2", "1"))
    with pytest.raises(PartialImport) as caught:
        formats.load(path, plain)
    assert tree(plain) == {("1", "2")}
    report: Any = caught.value.report
    assert "line 2" in report.unreadable[0].name


def test_records_are_kept_once_and_counted(store: Store, tmp_path: Path) -> None:
    more = [json.dumps({"toy": "s1", "type": "odd", "n": n}) for n in range(3)]
    mood = json.dumps({"toy": "s1", "type": "mood", "is": "good"})
    path = put(tmp_path / "s", *FORK, *more, mood)
    report = formats.load(path, store)
    assert (report.unknown, report.bookkeeping) == ({"odd": 3}, {"mood": 1})
    talk = newest(store)
    assert [type for type, _ in formats.read_records(talk)] == ["odd", "odd", "odd", "mood"]
    assert formats.load(path, store).unknown == {}
    put(path, *FORK, *more, mood, json.dumps({"toy": "s1", "type": "odd", "n": 9}))
    assert formats.load(path, store).unknown == {"odd": 1}
    assert [data["n"] for type, data in formats.read_records(talk) if type == "odd"] == [0, 1, 2, 9]  # type: ignore[index]  # JSON
    assert talk.thread()[-1].created_at.year == 2020
    assert store.conversations().items[0].active_at.year == 2020
    assert store.verify().ok


def test_an_answer_that_had_not_arrived_whole_is_amended(store: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", line("1"), line("2", "1", "A: half"))
    formats.load(path, store)
    put(path, line("1"), line("2", "1", "A: half and half", also=["2b"]), line("3", "2b"))
    report = formats.load(path, store)
    assert (report.amended, report.messages) == (1, 1)
    assert tree(store) == {("1", "A: half and half", "3")}
    assert formats.load(path, store).amended == 0


def test_a_title_from_the_file_is_renewed_until_somebody_gives_another(plain: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", line("1", title="one"))
    formats.load(path, plain)
    put(path, line("1", title="one"), line("2", "1", title="two"))
    formats.load(path, plain)
    talk = newest(plain)
    assert talk.title == "two"
    talk.rename("mine")
    put(path, line("1", title="one"), line("2", "1", title="three"))
    formats.load(path, plain)
    assert plain.conversation(talk.id).title == "mine"


def test_sub_agents_and_compactions_are_linked_roots(plain: Store, tmp_path: Path) -> None:
    label = "subagent:explore:a1"
    path = put(
        tmp_path / "s", line("1"), line("2", "1", "A: call"), line("t1", link="2", side=True, label=label),
        line("t2", "t1", "A: found", side=True, label=label), line("3", "2"), line("c", link="3"), line("4", "c"),
    )  # fmt: skip
    report = formats.load(path, plain)
    assert report.subagents == 1
    found = {m.text: m for m in plain.messages()}
    assert (found["t1"].link, found["t1"].main, found["c"].link, found["c"].main) == (
        found["A: call"].id, False, found["3"].id, True,
    )  # fmt: skip
    talk = newest(plain)
    assert [m.text for m in talk.thread()] == ["c", "4"]


def test_circles_orphans_and_doubles_do_not_stop_an_import(plain: Store, tmp_path: Path) -> None:
    path = put(
        tmp_path / "s", line("1"), line("1"), line("2", "3"), line("3", "2"), line("5", "gone"), line("6", "6"),
        line("7", "1"),
    )  # fmt: skip
    report = formats.load(path, plain)
    assert report.messages == 6
    assert {one[-1] for one in tree(plain)} == {"3", "5", "6", "7"}
    assert any("missing" in note for note in report.notes)
    assert any("twice" in note for note in report.notes)


def test_a_dry_run_says_the_same_and_writes_nothing(store: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", *FORK, *(line(f"m{n}", f"m{n - 1}" if n else "4") for n in range(1200)))
    dry = formats.load(path, store, dry_run=True)
    assert store.stats().conversations == 0
    assert list(store.items.scan()) == []
    report = formats.load(path, store)
    assert (dry.new, dry.messages, dry.leaves) == (report.new, report.messages, report.leaves) == (1, 1204, 2)
    assert formats.load(path, store, dry_run=True).known == 1204


@pytest.mark.parametrize("server", [False, True], ids=["sqlite", "postgres"])
def test_two_imports_at_once_double_nothing(server: bool, tmp_path: Path) -> None:
    place = new_database().url() if server else str(tmp_path / "a.db")
    names = [put(tmp_path / f"s{n}", *(line(f"{m}", f"{m - 1}" if m else None, toy=f"t{n}") for m in range(300)))
             for n in range(4)]  # fmt: skip
    child = put(tmp_path / "child", *(line(f"{m}", f"{m - 1}" if m else None, toy="c", forked="t0") for m in range(9)))
    problems: list[BaseException] = []

    def work(order: list[Path]) -> None:
        try:
            with hitherto.open(place) as store:
                for path in order:
                    formats.load(path, store)
        except BaseException as error:  # noqa: BLE001  # shown by the test
            problems.append(error)

    threads = [threading.Thread(target=work, args=(order,)) for order in ([*names, child], [child, *names])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    with hitherto.open(place) as store:
        assert (store.stats().conversations, store.stats().messages) == (4, 1200)


def test_a_folder_and_a_zip_hold_files_of_several_formats(plain: Store, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    (folder / "deep").mkdir(parents=True)
    put(folder / "deep" / "x", *FORK)
    put(folder / "y.txt", "not ours")
    own = PortableConversation(id="own", messages=(PortableMessage(id="1", message=Message.user("own")),))
    formats.save([own], folder / "own.jsonl")
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as made:
        for path in folder.rglob("*"):
            made.write(path, path.relative_to(folder).as_posix())
        made.writestr("../evil", line("0", toy="evil"))
        made.writestr("/abs", line("0", toy="abs"))
    for where in (folder, tmp_path / "z.zip"):
        with hitherto.open("memory:") as store:
            report = formats.load(where, store)
            assert {info.title for info in store.conversations()} == {""}
            assert tree(store) >= {("own",), ("1", "2", "3"), ("1", "2", "4")}
            assert report.skipped == 1
    assert not (tmp_path.parent / "evil").exists()
    assert not os.path.exists("/abs")


def test_a_zip_that_is_a_bomb_is_refused(plain: Store, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w", zipfile.ZIP_DEFLATED) as made, made.open("x", "w") as file:
        file.write(line("1").encode() + b"\n")
        for _ in range(200):
            file.write(b" " * (1 << 20))
    with pytest.raises((PartialImport, Damaged), match="far more"):
        formats.load(tmp_path / "z.zip", plain)


def test_a_stream_is_a_file(plain: Store, tmp_path: Path) -> None:
    with open(put(tmp_path / "s", *FORK), "rb") as stream:
        assert formats.load(stream, plain).messages == 4


def test_a_folder_of_nothing_known_is_refused(plain: Store, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    put(tmp_path / "d" / "y.txt", "not ours")
    with pytest.raises(InvalidArgument, match="no format"):
        formats.load(tmp_path / "d", plain)


def test_odd_values_are_kept(plain: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", '{"toy": "s1", "id": "1", "text": "half \\ud83d, nul \\u0000"}', line("2", "1"))
    formats.load(path, plain)
    assert ("half \ufffd, nul \0", "2") in tree(plain)
    deep: Any = []
    for _ in range(150):
        deep = [deep]
    kept = storable({"big": 2**70, "deep": deep, "plain": [1, "x"]})
    assert isinstance(kept, dict)
    assert (kept["big"], kept["plain"]) == (str(2**70), [1, "x"])
    assert time_us("2026-11-01T10:00:01.5Z") == 1_793_527_201_500_000 == time_us(1_793_527_201.5)
    assert time_us(1_793_527_201_500) == 1_793_527_201_500_000
    assert [time_us(value) for value in ("x", None, -1, float("inf"), True)] == [0] * 5


def test_ids_of_a_chain_tell_the_same_messages_in_the_same_place() -> None:
    one, two = Message.user("a"), Message.user("b")
    first = chain_id(None, one)
    assert chain_id(first, two) == chain_id(chain_id(None, Message.user("a")), Message.user("b"))
    assert len({first, chain_id(None, two), chain_id(first, two), chain_id(first, one)}) == 4


def test_what_is_too_large_for_text_is_kept_as_bytes(tmp_path: Path) -> None:
    path = put(tmp_path / "s", line("1"), line("2", "1", "x" * 200_000), line("3", "2"))
    with hitherto.open("memory:", max_write_bytes=100_000) as store:
        formats.load(path, store)
        talk = newest(store)
        assert len(talk.thread()) == 3


def test_a_sanitiser_cleans_messages_records_and_titles(tmp_path: Path) -> None:
    token = "ghp_" + "x7Kq2mZt9LbV4wRj8NcPs3YdHf6GaQ1eUo5T"
    odd = json.dumps({"toy": "s1", "type": "odd", "n": token})
    path = put(tmp_path / "s", line("1", text=f"token={token}", title=f"about {token}"), odd)
    with hitherto.open(tmp_path / "a.db", sanitiser=hitherto.Sanitiser.secrets()) as store:
        formats.load(path, store)
        assert formats.load(path, store).messages == 0
        assert token not in repr([m.blocks for m in store.messages()])
        talk = newest(store)
        assert token not in talk.title + repr(list(formats.read_records(talk)))
    assert not any(token.encode() in file.read_bytes() for file in tmp_path.glob("a.db*"))


def test_a_dry_run_knows_a_fork_of_what_would_be_brought_in(plain: Store, tmp_path: Path) -> None:
    put(tmp_path / "a", line("1"), line("2", "1"))
    put(tmp_path / "b", line("1", toy="s2", forked="s1"), line("9", "1", toy="s2"))
    dry = formats.load(tmp_path, plain, dry_run=True)
    report = formats.load(tmp_path, plain)
    assert (dry.new, dry.messages) == (report.new, report.messages) == (1, 3)


def test_a_store_that_got_a_copy_knows_its_messages(plain: Store, tmp_path: Path) -> None:
    path = put(tmp_path / "s", *FORK)
    formats.load(path, plain)
    with hitherto.open("memory:") as other:
        formats.copy(plain, other)
        put(path, *FORK, line("5", "4"))
        assert formats.load(path, other).messages == 1
        assert formats.load(path, other).messages == 0
        put(path, *FORK, line("5", "4"), line("6", "5"))
        assert formats.load(path, other).messages == 1
        assert tree(other) == {("1", "2", "3"), ("1", "2", "4", "5", "6")}


@pytest.mark.parametrize("reencrypt", [False, True])
def test_marks_and_index_outlive_a_rotation_of_keys(reencrypt: bool, tmp_path: Path) -> None:
    path, gone = put(tmp_path / "s", *FORK), put(tmp_path / "g", line("g", toy="g1"))
    with hitherto.open(tmp_path / "a.db", key=Key.generate()) as store:
        formats.load(gone, store)
        store.purge(newest(store), reason="user-requested")
        formats.load(path, store)
        store.rotate(Key.generate(), reencrypt=reencrypt)
        assert formats.load(path, store).messages == 0
        assert formats.load(gone, store).purged == 1
        assert store.verify().ok
