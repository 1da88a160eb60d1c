"""Files that are made to cost more than they look: refused, or read, within bounds of memory and time.

What is measured is measured in a process of its own, whose peak says all there is to say. Requirements: A8, and the
issue on bad input.
"""

import json
import subprocess
import sys
import textwrap
import time
import tracemalloc
import uuid
from pathlib import Path

import pytest

from hitherto.errors import Damaged, HithertoError, InvalidArgument, InvalidMessage
from hitherto.snapshots import FileStore, MemoryFiles, Snapshot
from hitherto.snapshots._json_text import DEEPEST, MOST_VALUES, check_bounds, compact, indent, read

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
START = f'{{"id":"{ID}","provider":"x","created_at":"2026-01-01T00:00:00Z","version":1,"messages":'
MB = 1_000_000


def filled(unit: str, size: int, before: str = "[", after: str = "]") -> str:
    return START + before + unit * (size // len(unit)) + after + "}"


# Unit, what stands before it, and behind it.
LARGE = {
    "lists": ("[],", "[", "[]]"),
    "objects": ("{},", "[", "{}]"),
    "names": ('"":0,', "[{", '"b":0}]'),
    "numbers": ("0,", '[{"a":[', "0]}]"),
    "texts": ('"",', '[{"a":[', '""]}]'),
    "quotes": ('"', "[" * 200, "]"),
    "ends": ("]", "[" * 200, "]"),
    "depth": ("[", "[", "]"),
    "objects in objects": ('{"a":', "[", "]"),
    "a number": ("9", '[{"a":', "}]"),
    "half characters": ("\\ud83d", '[{"a":"', '"}]'),
}
MEASURED = ("lists", "quotes")


def large(name: str, size: int) -> str:
    unit, before, after = LARGE[name]
    return filled(unit, size, before, after)


# The largest that was measured is five times the size of the file: its bytes, its text, and a copy or two on the way.
MEASURE = """
    import resource, sys, time
    from hitherto.errors import HithertoError
    from hitherto.snapshots import FileStore

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    store = FileStore(sys.argv[1])
    before, start = peak(), time.process_time()
    for act in (lambda: store.load(sys.argv[2]), store.list):
        try:
            result = act()
            print("read", len(getattr(result, "unreadable", ())))
        except HithertoError as error:
            print(type(error).__name__, len(str(error)) < 400)
    print(peak() - before, time.process_time() - start)
"""


def measured(folder: Path, text: str) -> tuple[list[str], float, float]:
    """What loading and listing said, bytes of memory, and seconds."""
    folder.mkdir(exist_ok=True)
    (folder / f"{ID}.json").write_text(text, "utf-8")
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), str(folder), ID]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    *said, figures = run.stdout.splitlines()
    memory, seconds = map(float, figures.split())
    return said, memory, seconds


@pytest.mark.skipif(sys.platform == "win32", reason="memory is measured with resource")
@pytest.mark.parametrize("name", MEASURED)
def test_a_large_bomb_takes_neither_much_memory_nor_long(tmp_path: Path, name: str) -> None:
    said, memory, seconds = measured(tmp_path / "x", large(name, 60 * MB))
    assert said == ["Damaged True", "read 1"]
    assert memory < 5 * 60 * MB
    assert seconds < 60


@pytest.mark.skipif(sys.platform == "win32", reason="memory is measured with resource")
def test_what_is_just_allowed_is_bounded_by_how_many_values_it_has(tmp_path: Path) -> None:
    """A part of what is allowed, so that the test is quick: up to 400 bytes for each value."""
    count = MOST_VALUES // 20
    text = START + "[{" + ",".join(f'"{n:x}":0.5' for n in range(count - 10)) + "}]}"
    said, memory, _ = measured(tmp_path / "x", text)
    assert said == ["read 0", "read 0"]
    assert memory < 400 * count + 5 * len(text)


def test_without_the_count_a_bomb_takes_a_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what the decoder makes of a small part of it."""
    monkeypatch.setattr("hitherto.snapshots._json_text.MOST_VALUES", 1000)
    text = "[" + "{}," * 50_000 + "{}]"
    tracemalloc.start()
    try:
        value = json.loads(text)
        assert tracemalloc.get_traced_memory()[1] > 20 * len(text)
        del value
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(InvalidMessage):
            read(text)
        assert tracemalloc.get_traced_memory()[1] - before < len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", LARGE)
def test_a_bomb_is_refused_in_a_moment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of it, with a tenth of what is allowed."""
    monkeypatch.setattr("hitherto.snapshots._json_text.MOST_VALUES", MOST_VALUES // 10)
    store = FileStore("x", fs=MemoryFiles())
    store._bucket.put(f"{ID}.json", large(name, 7 * MB // 10).encode())
    start = time.process_time()
    with pytest.raises(Damaged) as caught:
        store.load(ID)
    assert len(str(caught.value)) < 400
    # What is wrong inside a message alone is not seen by a listing, which does not read them.
    assert len(store.list().unreadable) == (name not in ("names", "a number"))
    assert time.process_time() - start < 20


LONG = {
    "text": filled("hello, [world] {again} ", MB, before='[{"a":"', after='"}]'),
    "escapes": filled('\\"', MB, before='[{"a":"', after='"}]'),
    "lines": filled(" \n", MB),
    "one wide character": filled("hello ", MB, before='[{"a":"🌻', after='"}]'),
    "almost pictures": filled("A" * 511 + ".", MB, before='[{"a":"', after='"}]'),
    "almost references": filled("chatmedia+sha256:", MB, before='[{"a":"', after='"}]'),
    "quotes in text": filled('\\"chatmedia+sha256:', MB, before='[{"a":"', after='"}]'),
    "commas": filled("1,", MB, before='[{"a":"', after='"}]'),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_text_is_no_bomb(name: str) -> None:
    """Whatever stands in a text costs its length, and is not counted."""
    store = FileStore("x", fs=MemoryFiles())
    store._bucket.put(f"{ID}.json", LONG[name].encode())
    start = time.process_time()
    found = store.load(ID)
    assert found.messages == json.loads(LONG[name])["messages"]
    assert store.list()[0].revision == found.revision
    store.save(found)
    assert store.load(ID) == found
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    "inside",
    [
        '[{"a":1,"a":2}]',
        '[{"a":NaN}]',
        '[{"a":-Infinity}]',
        '[{"a":1e400}]',
        '[{"a":' + "9" * 20_000 + "}]",
        '[{"a":"\\ud800"}]',
        '[{"a":"\x00"}]',
        '[{"a":"\x1f"}]',
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        '[{"a":' + "[" * 200_000 + "]" * 200_000 + "}]",
        "[" * 200_000,
        '[{"a":"' + "\\" * 200_001 + '"}]',
        "[{]}",
        "[{}",
        "{}",
        "[7]",
        "7",
    ],
)
def test_small_ones_are_refused_when_they_are_loaded(inside: str) -> None:
    store = FileStore("x", fs=MemoryFiles())
    good = Snapshot.new("claude", "m", "", [])
    store.save(good)
    store._bucket.put(f"{ID}.json", (START + inside + "}").encode())
    with pytest.raises(Damaged) as caught:
        store.load(ID)
    assert len(str(caught.value)) < 400
    assert good.id in {summary.id for summary in store.list()}


def test_bytes_that_are_no_text_are_refused() -> None:
    store = FileStore("x", fs=MemoryFiles())
    for inside in (b'[{"a":"\xff"}]', b'[{"a":"\xed\xa0\x80"}]', b'[{"a":"\xc0\x80"}]'):
        store._bucket.put(f"{ID}.json", START.encode() + inside + b"}")
        with pytest.raises(Damaged, match="UTF-8"):
            store.load(ID)
        assert len(store.list().unreadable) == 1


def test_the_bounds_are_where_they_are_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitherto.snapshots._json_text.MOST_VALUES", 1000)
    check_bounds("[" + "0," * 999 + "0]")
    with pytest.raises(InvalidMessage, match="values"):
        check_bounds("[" + "0," * 1000 + "0]")
    check_bounds('["' + "[{,}]" * 10_000 + '"]')
    with pytest.raises(InvalidMessage, match="values"):
        check_bounds('"' * 10_000)
    assert read("[" * DEEPEST + "]" * DEEPEST)
    with pytest.raises(InvalidMessage, match="deep"):
        check_bounds("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1))
    check_bounds('["' + "[" * 1000 + '"]')


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2, {"b": "x, y: [z]"}], "c": {}, "d": []}', "[]", '"x \\" y"', '[ "a\\\\" , "b c" ]', "7"]
)
def test_only_the_space_between_tokens_is_taken_and_given(text: str) -> None:
    small = compact(text)
    assert small == json.dumps(json.loads(text), separators=(",", ":"))
    assert indent(small) == json.dumps(json.loads(text), indent=2)
    assert compact(indent(small)) == small


def test_too_many_values_are_refused_where_a_snapshot_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitherto.snapshots._json_text.MOST_VALUES", 1000)
    with pytest.raises(InvalidMessage, match="values"):
        Snapshot.new("claude", "m", "", [{"a": list(range(2000))}])
    with pytest.raises(InvalidArgument):
        Snapshot.from_json(filled("{},", 30_000, after="{}]"))


def test_a_folder_of_bombs_is_listed() -> None:
    store = FileStore("x", fs=MemoryFiles())
    good = Snapshot.new("claude", "m", "", [])
    store.save(good)
    for text in (filled("[],", MB // 5), filled("[", MB // 5), "[" * 200_000, '{"a":' * 20_000, ""):
        store._bucket.put(f"{uuid.uuid4()}.json", text.encode())
    listing = store.list()
    assert ([one.id for one in listing], len(listing.unreadable)) == ([good.id], 5)
    for bad in listing.unreadable:
        assert len(bad.reason) < 400
        with pytest.raises(HithertoError):
            store.load(bad.name[:-5])
