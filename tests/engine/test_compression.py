"""Compression gives back what it was given, and never believes a frame (C2, D12)."""

import importlib.util
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto._engine import compression
from hitherto._engine.compression import compress, decompress
from hitherto.errors import Damaged

from ..support.thorough import examples

ROOT = Path(__file__).resolve().parents[2]
LEVELS = st.sampled_from([1, 6])
TEXT = b"What is said again and again gets smaller. " * 100


# -- there and back


@given(st.binary(max_size=3000) | st.builds(lambda b, n: b * n, st.binary(max_size=50), st.integers(1, 200)), LEVELS)
def test_what_is_squeezed_comes_back_equal(data: bytes, level: int) -> None:
    if data[:4] == compression._MAGIC:
        data = b"\x90" + data  # packs and marked chunks never begin so
    squeezed = compress(data, level=level)
    assert decompress(squeezed) == data
    assert len(squeezed) <= len(data)


@given(st.text(min_size=200, max_size=3000), LEVELS)
def test_text_comes_back_equal(text: str, level: int) -> None:
    data = text.encode()
    assert decompress(compress(data, level=level)) == data


def test_what_is_small_or_gets_no_smaller_is_left_as_it_is() -> None:
    noise = bytes(zstandard.ZstdCompressor().compress(TEXT)) * 2
    for data in (b"", b"a", b"a" * 512, noise[:600]):
        assert compress(data, level=1) == data
    assert len(compress(b"a" * 513, level=1)) < 100


def test_the_dictionary_makes_a_single_message_smaller() -> None:
    """It is not there for nothing: the same message alone, without it, stays larger."""
    body = (ROOT / "scripts" / "dictionary_text.txt").read_bytes()[5_000:6_500]
    assert len(compress(body, level=6)) < 0.8 * len(zstandard.ZstdCompressor(level=6).compress(body))


@pytest.mark.parametrize("size", [compression._ALONE - 1, compression._ALONE, 1 << 20])
def test_what_is_large_is_squeezed_without_the_dictionary_and_either_is_read(size: int) -> None:
    data = (TEXT * (size // len(TEXT) + 1))[:size]
    frame = compress(data, level=3)
    named = zstandard.get_frame_parameters(frame).dict_id != 0
    assert named == (size < compression._ALONE)
    assert decompress(frame) == data
    assert (
        decompress(compression._tools.compressor(3, alone=named).compress(data)) == data
    )  # as others may have written it


# -- frames that are not what they were


def test_a_truncated_frame_is_damaged() -> None:
    frame = compress(TEXT, level=6)
    assert frame[:4] == compression._MAGIC
    for length in range(4, len(frame)):
        with pytest.raises(Damaged):
            decompress(frame[:length])


def test_a_flipped_bit_is_damaged_or_other_content_but_no_foreign_error() -> None:
    """The frame has no checksum: the codec around it has, and tells. Here nothing may come through but `Damaged`."""
    frame = compress(TEXT[:1500], level=6)
    damaged = 0
    for place in range(4 * 8, len(frame) * 8):
        flipped = bytearray(frame)
        flipped[place // 8] ^= 1 << place % 8
        try:
            assert len(decompress(bytes(flipped))) <= compression._MAX_CONTENT_BYTES
        except Damaged:
            damaged += 1
    assert damaged > 8 * 8


@given(st.binary(max_size=100))
@settings(max_examples=examples(300))
def test_garbage_behind_the_magic_number_is_damaged(rest: bytes) -> None:
    try:
        decompress(compression._MAGIC + rest)
    except Damaged:
        return
    assert zstandard.frame_content_size(compression._MAGIC + rest) == 0


@pytest.mark.parametrize("size", [2**60, 2**63, 2**64 - 1, 2**40, (1 << 30) + 1])
def test_a_frame_that_claims_more_than_could_be_is_damaged_and_nothing_is_allocated(size: int) -> None:
    claims = (
        compression._MAGIC + b"\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"
    )  # single segment, 8 bytes of size
    with pytest.raises(Damaged):
        decompress(claims)


def test_a_frame_without_a_size_is_damaged() -> None:
    stream = zstandard.ZstdCompressor().compressobj()
    frame = stream.compress(TEXT) + stream.flush()
    assert zstandard.ZstdDecompressor().decompressobj().decompress(frame) == TEXT  # the control: zstd reads it
    with pytest.raises(Damaged):
        decompress(frame)


def test_a_frame_of_another_dictionary_is_damaged() -> None:
    samples: list[bytes | bytearray | memoryview] = [
        b"%d bottles of something else, %d of them empty" % (n, n * n) for n in range(2000)
    ]
    other = zstandard.train_dictionary(1024, samples)
    frame = zstandard.ZstdCompressor(dict_data=other).compress(TEXT)
    with pytest.raises(Damaged):
        decompress(frame)


# -- threads


def test_threads_share_nothing() -> None:
    """8 threads with 500 round trips each, of contents that differ."""
    problems: list[BaseException] = []

    def work(name: int) -> None:
        try:
            for n in range(500):
                data = b"%d of thread %d. " % (n, name) * (40 + n % 60)
                assert decompress(compress(data, level=1 if n % 2 else 6)) == data
        except BaseException as error:  # noqa: BLE001  # shown below
            problems.append(error)

    workers = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert problems == []


def test_each_thread_has_tools_of_its_own() -> None:
    compress(TEXT, level=6)
    mine = compression._tools.compressor(6)
    theirs: list[object] = []
    worker = threading.Thread(target=lambda: theirs.append(compression._tools.compressor(6)))
    worker.start()
    worker.join()
    assert mine is compression._tools.compressor(6)
    assert theirs
    assert theirs[0] is not mine


# -- the package


def test_the_dictionary_is_the_one_that_the_script_makes() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train_dictionary.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")


def test_the_check_of_the_dictionary_notices_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The control for the one above, without training again."""
    spec = importlib.util.spec_from_file_location("train_dictionary", ROOT / "scripts" / "train_dictionary.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    shipped = script.DICTIONARY.read_bytes()
    other = tmp_path / "dictionary-1.zstd"
    other.write_bytes(shipped[:-1])
    monkeypatch.setattr(script, "train", lambda: shipped)
    monkeypatch.setattr(script, "report", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["train_dictionary.py", "--check"])
    assert script.main() == 0
    monkeypatch.setattr(script, "DICTIONARY", other)
    assert script.main() == 1


def test_only_what_is_squeezed_needs_zstd() -> None:
    """Importing, opening, appending and reading do without it; packing loads it."""
    code = (
        "import sys, hitherto\n"
        "def loaded(): return [name for name in sys.modules if 'zst' in name.lower()]\n"
        "assert not loaded(), loaded()\n"
        "store = hitherto.open('memory:')\n"
        "talk = store.start()\n"
        "talk.append(hitherto.Message.user('x' * 5000))\n"
        "assert talk.thread() and not loaded(), loaded()\n"
        "store.maintain()\n"
        "assert loaded()\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")
