"""Attachments in an SQLite file: damage is noticed, memory stays small, nothing is left behind (C2, C3, D12, D14).

The contract has what holds on every backend; here the file itself is tampered with, the process is killed, and the
memory is measured.
"""

import json
import os
import signal
import subprocess
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack

import hitherto
from hitherto import Block, Conversation, HithertoError, Key, Message, Saved, Store
from hitherto._engine.bodies import Attached, decode_body
from hitherto.attachment import CHUNK, LARGE, Attachment
from hitherto.errors import AlreadyExists, Closed, Damaged, InvalidArgument, InvalidMessage, PayloadTooLarge
from hitherto.testing.conformance import noise, pack_all

from ..support.thorough import examples


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    with hitherto.open(file) as opened:
        yield opened


def image(content: "bytes | Attachment") -> Message:
    return Message.user([Block.text("look"), Block.image(content, "image/png")])


def tamper(file: Path, *statements: str) -> None:
    """Change the file behind the store's back."""
    connection = apsw.Connection(str(file))
    try:
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


def count(file: Path, table: str) -> int:
    connection = apsw.Connection(str(file))
    try:
        return len(connection.execute(f"SELECT rowid FROM {table}").fetchall())
    finally:
        connection.close()


# -- damage

FIRST, SECOND = (f"number >> 24 = {place}" for place in (1, 2))  # the chunks of the first and the second attachment
BROKEN = {
    "a truncated chunk": f"UPDATE chunk SET body = substr(body, 1, length(body) - 1) WHERE {FIRST} AND number & 15 = 1",
    "an empty chunk": f"UPDATE chunk SET body = x'' WHERE {FIRST} AND number & 15 = 0",
    "a chunk of four bytes": f"UPDATE chunk SET body = x'00000000' WHERE {FIRST} AND number & 15 = 1",
    "a missing last chunk": f"DELETE FROM chunk WHERE {FIRST} AND number & 15 = 2",
    "a missing first chunk": f"DELETE FROM chunk WHERE {FIRST} AND number & 15 = 0",
    "a chunk too many": f"INSERT INTO chunk SELECT number + 1, body FROM chunk WHERE {FIRST} AND number & 15 = 2",
    "a chunk in the place of its neighbour": "UPDATE chunk SET body = (SELECT body FROM chunk o WHERE "
    f"o.number = chunk.number + 1) WHERE {FIRST} AND number & 15 = 0",
    "a chunk of another attachment": f"UPDATE chunk SET body = (SELECT body FROM chunk WHERE {SECOND}) "
    f"WHERE {FIRST} AND number & 15 = 2",
    "a flipped byte": f"UPDATE chunk SET body = CAST(substr(body, 1, 1000) || x'00ff' || substr(body, 1003) AS BLOB) "
    f"WHERE {FIRST} AND number & 15 = 1",
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
@pytest.mark.parametrize("statement", BROKEN.values(), ids=BROKEN.keys())
def test_damage_in_the_file_is_noticed_and_the_message_is_named(
    store: Store, file: Path, statement: str, packed: bool
) -> None:
    talk = store.start()
    bad = talk.append(image(noise(2 * CHUNK + 9)))
    good = talk.append(image(noise(LARGE)))
    if packed:
        pack_all(store)
    assert store.verify().ok
    tamper(file, statement)
    for read in (talk.thread, lambda: store.message(bad), lambda: store.get([bad])):
        with pytest.raises(Damaged):
            read()
    (lazy,) = (m for m in talk.thread(attachments="lazy") if m.id == bad.id)
    content = lazy.blocks[1].content
    assert isinstance(content, Attachment)
    with pytest.raises(Damaged):
        content.read()
    with pytest.raises(Damaged):
        content.save(file.parent / "saved")
    assert sorted(path.name for path in file.parent.iterdir() if "saved" in path.name) == []
    assert [m.problem is None for m in store.messages(newest_first=False)] == [False, True]
    assert store.message(good).blocks[1].content == noise(LARGE)
    assert {problem.message for problem in store.verify().problems} - {None} == {bad.id}  # None: the storage itself


def test_a_reference_without_an_attachment_is_noticed(store: Store, file: Path) -> None:
    talk = store.start()
    bad = talk.append(image(noise(LARGE)))
    tamper(file, "PRAGMA foreign_keys = OFF", "DELETE FROM chunk", "DELETE FROM attachment")
    assert [m.problem for m in talk.thread()] == [f"an attachment is missing ({LARGE:,} bytes)"]
    report = store.verify()
    assert bad.id in {problem.message for problem in report.problems}
    assert any("refers to no attachment" in problem.what for problem in report.problems)


def test_an_attachment_without_its_reference_is_noticed(store: Store, file: Path) -> None:
    """Or the collector would take it."""
    talk = store.start()
    talk.append(image(noise(LARGE)))
    tamper(file, "DELETE FROM reference")
    assert {problem.conversation for problem in store.verify().problems} == {talk.id}


# -- bad input


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_after_close_an_attachment_says_so(file: Path, packed: bool) -> None:
    store = hitherto.open(file)
    talk = store.start()
    talk.append(image(noise(3 * CHUNK)))
    if packed:
        pack_all(store)
    content = talk.thread(attachments="lazy")[0].blocks[1].content
    assert isinstance(content, Attachment)
    begun = iter(content)
    next(begun)
    store.close()
    with pytest.raises(Closed):
        list(begun)
    with pytest.raises(Closed):
        content.read()


def test_what_cannot_be_a_file_is_refused(store: Store, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    wrong: list[object] = ["", tmp_path, tmp_path / "fifo", tmp_path / "never", "a\0b", 5, None, object()]
    for path in wrong:
        with pytest.raises(InvalidArgument):
            Attachment.from_file(path)  # type: ignore[arg-type]  # on purpose


def test_where_nothing_can_be_saved_the_error_is_ours(store: Store, tmp_path: Path) -> None:
    talk = store.start()
    talk.append(image(noise(LARGE)))
    content = talk.thread(attachments="lazy")[0].blocks[1].content
    assert isinstance(content, Attachment)
    (tmp_path / "file").touch()
    wrong: list[object] = [tmp_path / "never" / "x", tmp_path / "file" / "x", "a\0b", 5]
    for path in wrong:
        with pytest.raises(InvalidArgument):
            content.save(path)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(AlreadyExists):
        content.save(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AlreadyExists):
        content.save(tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir() if "store" not in path.name) == ["file", "link"]


def test_a_saved_attachment_is_for_its_owner_only(store: Store, tmp_path: Path) -> None:
    talk = store.start()
    talk.append(image(noise(LARGE)))
    content = talk.thread(attachments="lazy")[0].blocks[1].content
    assert isinstance(content, Attachment)
    content.save(tmp_path / "saved")
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o600


def test_half_a_surrogate_pair_beside_an_attachment_is_refused(store: Store) -> None:
    talk = store.start()
    with pytest.raises(InvalidMessage):
        talk.append(Message.user(Block.image(Attachment(1, lambda: iter([b"x"])), "image/png"), raw="\ud83d" * LARGE))


def test_an_attachment_where_none_can_be_is_refused(store: Store) -> None:
    tool: dict[str, object] = {"name": "t", "parameters": Attachment(1, lambda: iter([b"x"]))}
    with pytest.raises(HithertoError):
        store.start(tools=[tool])


def test_text_that_is_none_is_refused_before_it_is_kept(store: Store) -> None:
    """Or a message is acknowledged that nobody can read, nor anything below it."""
    talk = store.start()
    try:
        talk.append(image(Attachment(2, lambda: iter([b"\xff\xff"]), text=True)))
    except HithertoError:
        return
    talk.thread()


# -- what is left behind


def collected_after_a_day(file: Path) -> int:
    """What a store of tomorrow removes, after it has found everything else in order."""
    with hitherto.open(file, clock=lambda: 4_000_000_000_000_000) as tomorrow:
        assert tomorrow.verify().problems == ()
        return tomorrow.maintain().collected


def test_ctrl_c_while_staging_leaves_a_store_that_goes_on(store: Store, file: Path) -> None:
    talk = store.start()
    kept = talk.append(image(noise(LARGE)))
    content = noise(40 * CHUNK)
    reads = 0

    def pieces() -> Iterator[bytes]:
        nonlocal reads
        reads += 1
        for start in range(0, len(content), CHUNK):
            if reads == 2 and start == 35 * CHUNK:
                raise KeyboardInterrupt
            yield content[start : start + CHUNK]

    with pytest.raises(KeyboardInterrupt):
        talk.append(image(Attachment(len(content), pieces)))
    assert count(file, "chunk") == 1 + 32
    assert (talk.refresh().count, store.verify().problems) == (1, ())
    talk.append(image(content))  # takes over what was begun
    assert [m.blocks[1].content for m in talk.thread()] == [noise(LARGE), content]
    store.delete([talk.thread()[1].id])
    assert count(file, "chunk") == 1
    assert store.message(kept).blocks[1].content == noise(LARGE)


KILLED = """
import sys, hitherto
from hitherto import Block, Message
from hitherto.attachment import Attachment
reads = 0
def pieces():
    global reads
    reads += 1
    for n in range(40):
        if reads == 2 and n == 35:
            print("staging", flush=True)
            sys.stdin.read()
        yield bytes([n]) * 262144
store = hitherto.open(sys.argv[1])
talk = store.conversation(sys.argv[2])
talk.append(Message.user(Block.video(Attachment(40 * 262144, pieces), "video/mp4")))
"""


def test_a_process_that_is_killed_while_staging_leaves_chunks_that_are_collected(file: Path) -> None:
    with hitherto.open(file) as store:
        talk = store.start()
        talk.append(image(noise(LARGE)))
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(file), talk.id], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"staging\n"
    child.send_signal(signal.SIGKILL)
    child.wait(timeout=10)
    child.stdout.close()
    child.stdin.close()
    assert count(file, "chunk") == 1 + 32
    with hitherto.open(file) as store:
        assert store.verify().problems == ()
        assert store.maintain().collected == 0  # somebody may still be at it
        assert store.conversation(talk.id).append(Message.user("goes on")).parent is not None
    assert collected_after_a_day(file) == 1
    assert (count(file, "chunk"), count(file, "attachment")) == (1, 1)
    with hitherto.open(file) as store:
        assert store.conversation(talk.id).thread()[0].blocks[1].content == noise(LARGE)


def test_a_purge_while_staging_leaves_nothing_of_it(store: Store, file: Path) -> None:
    talk = store.start()
    content = noise(20 * CHUNK)
    reads = 0

    def pieces() -> Iterator[bytes]:
        nonlocal reads
        reads += 1
        for start in range(0, len(content), CHUNK):
            if reads == 2 and start == 18 * CHUNK:
                store.purge(talk, reason="user-requested")
            yield content[start : start + CHUNK]

    with pytest.raises(HithertoError):
        talk.append(image(Attachment(len(content), pieces)))
    assert count(file, "chunk") == 0


def test_deleted_attachments_leave_no_bytes_in_the_file(store: Store, file: Path) -> None:
    """Of one that was deleted, and of one that was purged; packed or not."""
    secret = b"unspeakable" * 40
    for packed in (False, True):
        talk = store.start()
        content = secret + noise(CHUNK)  # not squeezed
        talk.append(Message.user("x"))
        saved = talk.append(image(content))
        if packed:
            pack_all(store)
        assert store.scrub()
        assert secret in file.read_bytes()  # the control: it would be found
        if packed:
            store.purge(talk, reason="user-requested")
        else:
            store.delete([saved.id])
            assert store.scrub()
        for path in file.parent.iterdir():
            assert secret not in path.read_bytes(), path


# -- strings that say bytes in base64

DATA_URL = "data:image/png;base64,"


def spelled(data: bytes, *, url: bool = False, padded: bool = True, prefix: str = "") -> str:
    text = (urlsafe_b64encode if url else b64encode)(data).decode()
    return prefix + (text if padded else text.rstrip("="))


def spellings(data: bytes) -> list[str]:
    """The ways in which providers and people write bytes, all of them different for these."""
    ways = [(url, padded, prefix) for url in (False, True) for padded in (True, False) for prefix in ("", DATA_URL)]
    return [spelled(data, url=url, padded=padded, prefix=prefix) for url, padded, prefix in ways]


def refers_to(store: Store, saved: Saved) -> tuple[Attached, ...]:
    """The attachments that a message names in its content."""
    row = store.engine.message_row(saved.id)
    (content,) = store.engine.state_for(row.conversation, None).envelope.open_messages([row])
    return decode_body(content).attached


def of_file(file: Path) -> tuple[int, int]:
    """Attachments in the file, and the bytes of their chunks."""
    connection = apsw.Connection(str(file))
    try:
        sizes = [size for (size,) in connection.execute("SELECT length(body) FROM chunk") if isinstance(size, int)]
        return count(file, "attachment"), sum(sizes)
    finally:
        connection.close()


@pytest.mark.parametrize("size", [LARGE, LARGE + 1, LARGE + 2, CHUNK - 1, CHUNK + 1, 3 * CHUNK + 1])
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "sealed"])
def test_an_image_and_its_base64_are_kept_once(file: Path, size: int, sealed: bool) -> None:
    """However the string is written: it comes back equal, from where it lies loose, packed, or in a backup."""
    data = noise(size)
    assert b"+" in b64encode(data)
    assert b"/" in b64encode(data)
    key = Key.generate() if sealed else None
    with hitherto.open(file, key=key) as store:
        talk = store.start()
        raw = {"parts": [{"data": text} for text in spellings(data)]}
        message = Message.user(Block.image(data, "image/png", source=spelled(data)), extra={"same": raw}, raw=raw)
        saved = talk.append(message)
        kept, chunks = of_file(file)
        assert kept == 1
        assert size <= chunks < size + 1000
        pack_all(store)
        for read in (saved, talk.thread()[0], store.message(saved), store.get([saved])[0], next(store.messages())):
            assert (read.raw, read.extra, read.blocks) == (message.raw, message.extra, tuple(message.blocks))
        assert store.verify().problems == ()
        store.backup(file.with_name("copy.db"))
    with hitherto.open(file.with_name("copy.db"), key=key) as copy:
        assert copy.message(saved).raw == raw
        assert copy.verify().problems == ()


def test_fifty_megabytes_in_base64_are_no_text(store: Store, file: Path) -> None:
    """Neither beside the block with the same image nor alone; what is no base64 still counts."""
    data = noise(50_000_000)
    text = spelled(data, prefix=DATA_URL)
    talk = store.start()
    message = Message.user(Block.image(data, "image/png"), raw={"image_url": {"url": text}})
    talk.append(message)
    talk.append(Message.user("the same", raw=text))
    first, second = talk.thread()
    assert (first.raw, second.raw) == (message.raw, text)
    assert of_file(file)[0] == 1
    with pytest.raises(PayloadTooLarge):
        talk.append(Message.user("x", raw=text[:-1] + "!"))


def test_what_base64_says_has_the_limit_of_an_attachment(file: Path) -> None:
    with hitherto.open(file, max_attachment=CHUNK) as store:
        talk = store.start()
        talk.append(Message.user("x", raw=spelled(noise(CHUNK))))
        with pytest.raises(PayloadTooLarge) as refused:
            talk.append(Message.user("x", raw=spelled(noise(CHUNK + 1))))
        assert (refused.value.size, refused.value.limit) == (CHUNK + 1, CHUNK)
        assert of_file(file)[0] == 1


def test_read_lazily_base64_is_text_that_is_made_while_it_is_read(store: Store, tmp_path: Path) -> None:
    data = noise(3 * CHUNK + 1)
    talk = store.start()
    saved = talk.append(Message.user(Block.image(data, "image/png"), raw=list(spellings(data))))
    (lazy,) = talk.thread(attachments="lazy")
    assert isinstance(lazy.raw, list)
    for n, (found, text) in enumerate(zip(lazy.raw, spellings(data), strict=True)):
        assert isinstance(found, Attachment)
        assert (found.text, found.size) == (True, len(text))
        assert (found.load(), found.read()) == (text, text.encode())
        assert max(len(piece) for piece in found) < 2 * CHUNK
        found.save(tmp_path / f"{n}.txt")
        assert (tmp_path / f"{n}.txt").read_text() == text
    store.delete([saved.id])
    with pytest.raises(hitherto.NotFound):
        lazy.raw[0].load()


def test_base64_that_was_read_lazily_can_be_said_again_without_counting_as_text(store: Store, file: Path) -> None:
    data = noise(8_000_000)
    talk, other = store.start(), store.start()
    talk.append(Message.user("x", raw=spellings(data)[:2]))
    saved = other.append(talk.thread(attachments="lazy")[0])
    assert isinstance(saved.raw, list)
    assert [found.load() for found in saved.raw] == spellings(data)[:2]
    store.purge(talk, reason="user-requested")
    assert other.thread()[0].raw == spellings(data)[:2]
    assert of_file(file)[0] == 1


def test_base64_goes_along_with_detach_seal_rotate_and_delete(file: Path) -> None:
    data = noise(CHUNK + 1)
    raw = {"ways": spellings(data)}
    old, new = Key.generate(), Key.generate()
    with hitherto.open(file) as store:
        talk = store.start()
        talk.append(Message.user(Block.image(data, "image/png"), raw=raw))
        alone = talk.detach()
        store.seal(old)
        assert [m.raw for m in (*talk.thread(), *alone.thread())] == [raw, raw]
        store.rotate(new, reencrypt=True)
        assert [m.raw for m in (*talk.thread(), *alone.thread())] == [raw, raw]
        assert [m.blocks[0].content for m in (*talk.thread(), *alone.thread())] == [data, data]
        assert store.verify().problems == ()
        assert of_file(file)[0] == 2
        store.purge(talk, reason="user-requested")
        store.delete([alone.thread()[0].id])
        assert of_file(file) == (0, 0)


def test_damage_in_bytes_that_are_read_as_base64_is_noticed(store: Store, file: Path) -> None:
    talk = store.start()
    bad = talk.append(Message.user("x", raw=spelled(noise(2 * CHUNK + 9))))
    (lazy,) = talk.thread(attachments="lazy")
    assert isinstance(lazy.raw, Attachment)
    tamper(file, BROKEN["a missing last chunk"])
    for read in (talk.thread, lazy.raw.load, lazy.raw.read):
        with pytest.raises(Damaged):
            read()
    assert bad.id in {problem.message for problem in store.verify().problems}


def test_content_from_before_base64_was_known_reads_as_it_did() -> None:
    old = msgpack.encode({"blocks": [], "attached": [[b"a", 5], [b"b", 70_000, True]]})
    assert decode_body(old).attached == (Attached(b"a", 5), Attached(b"b", 70_000, text=True))


def test_a_way_of_writing_that_nobody_knows_is_damage() -> None:
    for unknown in (-1, 5, "1", None):
        with pytest.raises(Damaged):
            decode_body(msgpack.encode({"blocks": [], "attached": [[b"a", 5, False, unknown, ""]]}))


def near(text: str) -> dict[str, str]:
    """Strings that are almost base64. The text is padded with two signs."""
    assert text.endswith("==")
    half = len(text) // 2
    last = chr(ord(text[-3]) + 1)  # with other bits behind the end, which say nothing
    return {
        "a sign that is none": text[:half] + "!" + text[half + 1 :],
        "a sign of the other alphabet": text[:half] + "-" + text[half + 1 :] if "+" in text else text + "-",
        "half of the padding": text[:-1],
        "too much padding": text + "=",
        "far too much padding": text + "====",
        "padding in the middle": text[:half] + "=" + text[half + 1 :],
        "something after the padding": text + "QUJD",
        "one sign too many": text[:-2] + "AAA",
        "a newline at the end": text + "\n",
        "a newline at the beginning": "\n" + text,
        "a newline after each 76 signs": "\n".join(text[n : n + 76] for n in range(0, len(text), 76)),
        "a space": text[:half] + " " + text[half:],
        "a NUL": text[:half] + "\0" + text[half + 1 :],
        "a letter that is no ASCII": text[:half] + "é" + text[half + 1 :],
        "bits after the end": text[:-3] + last + "==",
        "bits after the end, unpadded": text[:-3] + last,
        "two data URLs": DATA_URL * 2 + text,
        "a data URL that does not say base64": "data:image/png," + text,
        "a comma too many": "data:image/png,;base64," + text,
        "a long beginning": "data:" + "x" * 1000 + ";base64," + text,
        "a beginning with a newline": "data:\n;base64," + text,
        "a beginning that is no ASCII": "data:ü;base64," + text,
    }


def test_what_is_almost_base64_comes_back_equal_and_is_text(store: Store) -> None:
    data = noise(LARGE)  # a multiple of three and one
    assert b"+" in b64encode(data)
    texts = near(spelled(data))
    talk = store.start()
    for what, text in texts.items():
        saved = talk.append(Message.user("x", raw=text))
        assert [(a.text, a.base64) for a in refers_to(store, saved)] == [(True, 0)], what
        assert store.message(saved).raw == text, what
    exact = talk.append(Message.user("x", raw=spelled(data)))  # the control
    assert [(a.size, a.text, a.base64) for a in refers_to(store, exact)] == [(len(data), False, 1)]


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@settings(max_examples=examples(150), deadline=None)
@given(
    begin=st.sampled_from(["", DATA_URL, "data:;base64,", "data:a/b;x=1;base64,", "data:"]) | st.text(max_size=5),
    middle=st.text(ALPHABET + "+/", max_size=5) | st.text(ALPHABET + "-_", max_size=5) | st.text(ALPHABET + "+_=\n"),
    letter=st.sampled_from(["A", "z", "_", "-", "+", "/", "="]),
    end=st.text(ALPHABET, max_size=3) | st.text("=AQgw\n", max_size=6) | st.text(max_size=3),
)
def test_any_long_string_comes_back_equal(begin: str, middle: str, letter: str, end: str) -> None:
    text = begin + letter * (LARGE + 1 - len(middle)) + middle + end
    with hitherto.open("memory:") as store:
        talk = store.start()
        saved = talk.append(Message.user("x", raw=[text, {"again": text}], extra={"t": text + "A"}))
        (read,) = talk.thread()
        assert (read.raw, read.extra) == (saved.raw, saved.extra) == ([text, {"again": text}], {"t": text + "A"})
        (lazy,) = talk.thread(attachments="lazy")
        assert isinstance(lazy.raw, list)
        assert lazy.raw[0].load() == text
        assert lazy.raw[0].size == len(text.encode())
        assert store.verify().problems == ()


# -- little memory

MEASURED = """
import json, os, resource, sys, tempfile, hitherto
from hitherto import Block, Message
from hitherto.attachment import Attachment
folder, megabytes, lazy = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "lazy"
def peak():
    try:  # unlike getrusage, it does not begin with what the parent needed
        return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
def make(name, megabytes):
    with open(os.path.join(folder, name), "wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1 << 20))
    return os.path.join(folder, name)
store = hitherto.open(os.path.join(folder, "store.db"))
def keep(path):
    talk = store.start()
    talk.append(Message.user(Block.video(Attachment.from_file(path), "video/mp4")))
    content = talk.thread(attachments="lazy" if lazy else "load")[0].blocks[0].content
    if lazy:
        content.save(path + ".saved")
        assert os.path.getsize(path + ".saved") == os.path.getsize(path)
keep(make("small", 1))
large = make("large", megabytes)
before = peak()
keep(large)
print(json.dumps(peak() - before))
"""


def megabytes_needed(folder: Path, megabytes: int, how: str) -> int:
    command = [sys.executable, "-c", MEASURED, str(folder), str(megabytes), how]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return int(json.loads(run.stdout))


def test_a_large_file_goes_in_and_out_through_little_memory(tmp_path: Path) -> None:
    assert megabytes_needed(tmp_path, 80, "lazy") < 40


def test_a_large_file_that_is_loaded_needs_its_size(tmp_path: Path) -> None:
    """The control: the measurement would notice."""
    assert megabytes_needed(tmp_path, 50, "load") > 45


# -- copies


def test_a_backup_has_packs_and_attachments_and_a_feed_of_its_own(store: Store, tmp_path: Path) -> None:
    talk = store.start(title="T")
    talk.extend([Message.user(f"m{n}") for n in range(40)])
    talk.append(image(noise(CHUNK + 1)))
    pack_all(store)
    position = store.backend.changes(None).position
    talk.append(Message.user("loose"))
    store.backup(tmp_path / "copy.db")
    with pytest.raises(AlreadyExists):
        store.backup(tmp_path / "copy.db")
    thread = talk.thread()
    talk.append(Message.user("later"))
    with hitherto.open(tmp_path / "copy.db") as copy:
        assert copy.conversation(talk.id).thread() == thread
        assert copy.verify().problems == ()
        assert copy.backend.changes(position).everything
        copy.conversation(talk.id).append(Message.user("in the copy"))
    assert not store.backend.changes(position).everything  # the control: here it is known
    assert [path.name for path in tmp_path.iterdir() if "unfinished" in path.name] == []
    assert store.verify().problems == ()


def test_a_backup_while_others_write_is_whole(store: Store, tmp_path: Path) -> None:
    talk = store.start()
    writes: list[Callable[[Conversation], Saved]] = [
        lambda talk: talk.append(Message.user("said")),
        lambda talk: talk.append(image(noise(LARGE))),
    ]
    for n in range(6):
        writes[n % 2](talk)
        store.backup(tmp_path / f"{n}.db")
        store.maintain()
        with hitherto.open(tmp_path / f"{n}.db") as copy:
            assert copy.stats().messages == n + 1
            assert copy.verify().problems == ()
