"""Keys: where they come from, where they are kept, and that they are told to nobody.

Files have real modes, commands are real processes, and the keyring library is the real one; where there is a Secret
Service to start, it is asked as well. Every failing path is also run with a key that would be recognised in the error,
in what hangs on to it, and in the local variables of its traceback, because error reporters send those.

Requirements: A7, D6, D21; "undecryptable data" in REQUIREMENTS; keys in DESIGN.
"""

import base64
import contextlib
import copy
import errno
import gc
import os
import pickle
import resource
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import keyring
import keyring.backend
import keyring.core
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keyring.backends import chainer, fail, null
from keyring.errors import KeyringError, KeyringLocked, PasswordSetError

from hitherto import keys
from hitherto._sealing import primitives
from hitherto.errors import (
    AlreadyExists,
    HithertoError,
    InvalidArgument,
    InvalidKey,
    KeyUnavailable,
    StorageError,
)
from hitherto.keys import Key

from ..support.patience import SOON

if os.name != "posix":
    pytest.skip("modes, signals and these commands are those of POSIX", allow_module_level=True)

SECRET = b"MARKER-not-to-be-seen-by-anybody"
OTHER = bytes(range(100, 132))
OURS = "hitherto-key-1:" + base64.urlsafe_b64encode(SECRET).decode().rstrip("=")
# What would give the key away, in whatever form it is shown.
TRACES = ("MARKER", SECRET.hex()[:12], base64.b64encode(SECRET).decode()[:12], "77, 65, 82, 75")


def put(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def frames_below(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame that is not the test's own."""
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    return below


def tells(error: BaseException) -> str:
    """Everything that an error reporter would send."""
    shown = traceback.TracebackException(type(error), error, frames_below(error), capture_locals=True)
    parts = ["".join(shown.format()), str(error), repr(error), repr(error.args), repr(vars(error))]
    parts += [tells(other) for other in (error.__cause__, error.__context__) if other is not None]
    return "\n".join(parts)


def raised(kind: type[HithertoError], call: Callable[..., object], *args: Any, **options: Any) -> HithertoError:
    """The error, which has a hint, hangs on to no other, and does not tell the key."""
    with pytest.raises(kind) as caught:
        call(*args, **options)
    error = caught.value
    assert type(error) is kind
    assert error.hint
    assert error.__cause__ is None
    assert error.__context__ is None
    told = tells(error)
    assert not [trace for trace in TRACES if trace in told]
    return error


def test_a_careless_function_is_caught_telling_the_key() -> None:
    """The control of `raised`: in a variable, in a message, in what came before, in an attribute."""

    def in_a_variable() -> None:
        exec(compile("held = secret\nraise KeyUnavailable('no')", "elsewhere.py", "exec"), names())

    def in_a_message() -> None:
        raise KeyUnavailable(f"cannot read {SECRET!r}")

    def before() -> None:
        try:
            SECRET.decode("utf-16").encode("ascii")
        except ValueError as error:
            error.object = SECRET.decode()  # type: ignore[attr-defined]
            raise KeyUnavailable("no") from error

    def in_an_attribute() -> None:
        error = KeyUnavailable("no")
        error.given = SECRET.hex()  # type: ignore[attr-defined]
        raise error

    def names() -> dict[str, object]:
        return {"secret": SECRET, "KeyUnavailable": KeyUnavailable}

    for careless in (in_a_variable, in_a_message, before, in_an_attribute):
        with pytest.raises(AssertionError):
            raised(KeyUnavailable, careless)


# -- 32 bytes


def test_a_key_is_32_bytes() -> None:
    assert Key(SECRET) == Key(bytearray(SECRET))
    assert Key.generate() != Key.generate()


@pytest.mark.parametrize(
    "given",
    [
        *(b"", SECRET[:31], SECRET + b"!", SECRET * 2, bytes(32), bytearray(32)),
        *(SECRET.decode(), SECRET.hex(), OURS, None, 32, [*SECRET], memoryview(SECRET)),
    ],
)
def test_nothing_else_is_a_key_and_least_of_all_no_encryption(given: Any) -> None:
    error = raised(InvalidKey, Key, given)
    assert isinstance(error, ValueError)


def test_an_error_about_a_value_says_what_is_wrong_with_it() -> None:
    assert "32 bytes, not 31" in str(raised(InvalidKey, Key, SECRET[:31]))
    assert "zeros" in str(raised(InvalidKey, Key, bytes(32)))
    error = raised(InvalidKey, Key, OURS)
    assert "not a str" in str(error)
    assert "from_file" in str(error.hint)


def test_the_id_says_which_key_it_is_without_telling_it() -> None:
    key = Key(SECRET)
    assert key.id == primitives.derive(SECRET, b"", b"hitherto/1 key id", 8).hex() == Key(SECRET).id
    assert key.id == "3a0a6b94cff6300f"  # for ever: it may stand in stores
    assert Key(OTHER).id != key.id
    with pytest.raises(AttributeError):
        key.id = "other"  # type: ignore[misc]


def test_a_key_keeps_its_own_copy() -> None:
    given = bytearray(SECRET)
    key = Key(given)
    given[:] = OTHER
    assert key == Key(SECRET)


def test_keys_are_equal_by_their_bytes_and_serve_in_sets() -> None:
    key = Key(SECRET)
    assert key == key  # noqa: PLR0124  # also itself
    assert key == Key(SECRET)
    assert key != Key(OTHER)
    assert key != SECRET
    assert len({key, Key(SECRET), Key(OTHER)}) == 2


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bytes, bytes]] = []

    def noted(a: bytes, b: bytes) -> bool:
        asked.append((a, b))
        return True

    monkeypatch.setattr(primitives, "same", noted)
    assert Key(SECRET) == Key(OTHER)  # what `same` says is what counts
    assert asked == [(SECRET, OTHER)]


def test_deriving_is_hkdf_of_salt_and_purpose() -> None:
    key = Key(SECRET)
    assert key._derive(b"salt", b"purpose") == primitives.derive(SECRET, b"salt", b"purpose", 32)
    assert len(key._derive(b"", b"", 8160)) == 8160


@pytest.mark.parametrize("arguments", [(b"", b"", 0), (b"", b"", -1), (b"", b"", 8161), ("", b"", 32), (b"", None, 32)])
def test_a_derivation_that_cannot_be_is_refused_before_the_secret_is_touched(arguments: tuple[Any, Any, int]) -> None:
    raised(InvalidArgument, Key(SECRET)._derive, *arguments)


# -- silence


def test_a_key_shows_the_beginning_of_its_id_and_nothing_else() -> None:
    key = Key(SECRET)
    for shown in (repr(key), str(key), f"{key}", f"{key!r}", "%s" % key, repr([key]), format(key)):  # noqa: UP031
        assert shown.strip("[]") == f"<Key {key.id[:8]}…>"
    assert not hasattr(key, "__dict__")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_key_is_not_pickled(protocol: int) -> None:
    with pytest.raises(TypeError, match="not pickled or copied") as caught:
        pickle.dumps({"key": Key(SECRET)}, protocol)
    assert "MARKER" not in tells(caught.value)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_a_key_is_not_copied(way: Callable[[Key], Key]) -> None:
    with pytest.raises(TypeError, match="not pickled or copied"):
        way(Key(SECRET))


def test_a_wiped_key_is_zeros_and_cannot_be_used(tmp_path: Path) -> None:
    key = Key.from_file(put(tmp_path / "key", SECRET))
    before = key.id
    key.wipe()
    key.wipe()
    assert key._secret == bytes(32)
    assert not [held for held in gc.get_referents(key) if isinstance(held, bytes | bytearray) and b"MARKER" in held]
    for use in (
        lambda: key._derive(b"", b""),
        lambda: key == Key(SECRET),
        lambda: Key(SECRET) == key,
        lambda: key.to_file(tmp_path / "copy"),
        lambda: key.to_keyring("app"),
        key._again,
    ):
        assert "wiped" in str(raised(KeyUnavailable, use))
    assert not (tmp_path / "copy").exists()
    assert (key.id, hash(key), repr(key)) == (before, hash(before), f"<Key {before[:8]}…>")


def test_two_wiped_keys_are_not_taken_for_the_same() -> None:
    one, other = Key(SECRET), Key(OTHER)
    one.wipe()
    other.wipe()
    raised(KeyUnavailable, lambda: one == other)


def test_cryptography_and_keyring_are_loaded_when_they_are_used_and_not_before() -> None:
    program = """
        import sys
        from hitherto.keys import Key
        heavy = {"cryptography", "keyring", "subprocess", "hitherto._sealing.primitives"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        Key.generate()
        assert {"cryptography", "hitherto._sealing.primitives"} <= set(sys.modules)  # the control
        assert "keyring" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_without_cryptography_there_is_no_secret_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hitherto._sealing.primitives")
    monkeypatch.delattr("hitherto._sealing.primitives")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    path = put(tmp_path / "key", SECRET)
    calls: list[Callable[[], Key]] = [lambda: Key(SECRET), lambda: Key.from_file(path)]
    for call in calls:
        with pytest.raises(ImportError) as caught:
            call()
        told = tells(caught.value)
        assert not [trace for trace in TRACES if trace in told]


# -- forms

FORMS = {
    "hexadecimal": SECRET.hex(),
    "HEXADECIMAL": SECRET.hex().upper(),
    "base64": base64.b64encode(SECRET).decode(),
    "base64url": base64.urlsafe_b64encode(SECRET).decode(),
    "base64 without padding": base64.b64encode(SECRET).decode().rstrip("="),
    "base64url without padding": base64.urlsafe_b64encode(SECRET).decode().rstrip("="),
    "our own": OURS,
}


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_text_is_read_with_one_newline_or_none(tmp_path: Path, form: str, end: str) -> None:
    assert Key.from_file(put(tmp_path / "key", (FORMS[form] + end).encode())) == Key(SECRET)


@given(st.binary(min_size=32, max_size=32).filter(any))
def test_any_32_bytes_are_read_from_every_form(secret: bytes) -> None:
    for text in (
        secret,
        secret.hex().encode(),
        base64.b64encode(secret),
        base64.urlsafe_b64encode(secret),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
        Key(secret)._text().encode(),
    ):
        assert keys._parse(text, "it") == bytearray(secret)
    assert isinstance(keys._parse(secret + b"\n", "it"), keys.Problem)


def test_raw_bytes_may_end_with_a_newline_of_their_own(tmp_path: Path) -> None:
    secret = SECRET[:31] + b"\n"
    assert Key.from_file(put(tmp_path / "key", secret)) == Key(secret)


BASE64 = base64.b64encode(SECRET)
NO_KEYS = {
    "nothing": (b"", "is empty"),
    "a newline": (b"\n", "1 bytes"),
    "31 bytes": (SECRET[:31], "31 bytes"),
    "33 bytes": (SECRET + b"!", "33 bytes"),
    "raw bytes and a newline": (SECRET + b"\n", "newline"),
    "raw bytes and two": (SECRET + b"\r\n", "34 bytes"),
    "two keys in raw bytes": (SECRET + OTHER, "64 bytes"),
    "two keys on two lines": (SECRET.hex().encode() + b"\n" + OTHER.hex().encode(), "more than a key"),
    "two newlines": (SECRET.hex().encode() + b"\n\n", "66 bytes"),
    "a carriage return alone": (SECRET.hex().encode() + b"\r", "65 bytes"),
    "a space before": (b" " + SECRET.hex().encode(), "65 bytes"),
    "a space inside": (SECRET.hex().encode()[:-2] + b" 0", "64 bytes"),
    "a NUL behind": (SECRET.hex().encode() + b"\0", "65 bytes"),
    "62 hexadecimal digits": (SECRET.hex().encode()[:-2], "62 bytes"),
    "no hexadecimal digit": (SECRET.hex().encode()[:-1] + b"g", "64 bytes"),
    "base64 of 31 bytes": (base64.b64encode(SECRET[:31]), "44 bytes"),
    "base64 of 33 bytes": (base64.b64encode(SECRET + b"!"), "44 bytes"),
    "two paddings": (BASE64 + b"=", "45 bytes"),
    "both alphabets": (b"+_" + BASE64[2:], "44 bytes"),
    "bits that are too many": (BASE64[:-2] + bytes([BASE64[-2] + 1]) + b"=", "44 bytes"),
    "padding in our own form": (OURS.encode() + b"=", "59 bytes"),
    "another version": (OURS.encode().replace(b"-1:", b"-2:"), "58 bytes"),
    "full-width digits": (("\N{FULLWIDTH DIGIT ONE}" + SECRET.hex()[:61]).encode(), "64 bytes"),
    "a byte order mark": (b"\xef\xbb\xbf" + OURS.encode(), "61 bytes"),
    "a great deal": (SECRET * 10_000, "more than a key"),
    "zeros": (bytes(32), "zeros"),
    "zeros in hexadecimal": (b"0" * 64, "zeros"),
    "zeros in base64": (base64.b64encode(bytes(32)), "zeros"),
}


@pytest.mark.parametrize("name", NO_KEYS)
def test_whatever_else_lies_in_a_file_is_refused_without_showing_it(tmp_path: Path, name: str) -> None:
    data, said = NO_KEYS[name]
    error = raised(KeyUnavailable, Key.from_file, put(tmp_path / "key", data))
    assert said in str(error)
    assert str(tmp_path / "key") in str(error)
    assert "32 raw bytes" in str(error.hint)


# -- files


def test_a_key_in_a_file_is_fetched_by_whatever_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "key", SECRET)
    (tmp_path / "link").symlink_to(path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for named in (path, str(path), "key", "~/key", Path("~/key"), tmp_path / "link"):
        assert Key.from_file(named) == Key(SECRET)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_that_only_its_owner_may_read_is_trusted(tmp_path: Path, mode: int) -> None:
    assert Key.from_file(put(tmp_path / "key", SECRET, mode)) == Key(SECRET)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o666, 0o620, 0o602, 0o601, 0o610, 0o440, 0o777])
def test_a_file_that_is_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = put(tmp_path / "a key", SECRET, mode)
    error = raised(KeyUnavailable, Key.from_file, path)
    assert f"mode {mode:04o}" in str(error)
    assert f"chmod 600 '{path}'" in str(error.hint)
    path.chmod(0o600)
    assert Key.from_file(path) == Key(SECRET)  # the control: it was the mode


def test_the_mode_that_counts_is_that_of_the_file_a_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(put(tmp_path / "key", SECRET, 0o644))
    raised(KeyUnavailable, Key.from_file, tmp_path / "link")


def test_where_there_are_no_modes_none_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows; that it is a file, and a key, is asked all the same."""
    monkeypatch.setattr(keys, "_POSIX", False)
    assert Key.from_file(put(tmp_path / "key", SECRET, 0o644)) == Key(SECRET)
    raised(KeyUnavailable, Key.from_file, tmp_path)
    Key(OTHER).to_file(tmp_path / "other")
    assert Key.from_file(tmp_path / "other") == Key(OTHER)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "key", SECRET)
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        owner = 65534
    else:  # nobody else can give a file away: so we are somebody else
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert f"uid {owner}" in str(raised(KeyUnavailable, Key.from_file, path))


def test_a_file_of_root_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has files of root")
    path = put(tmp_path / "key", SECRET)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert Key.from_file(path) == Key(SECRET)


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    path = put(tmp_path / "key", SECRET, 0o000)
    tmp_path.chmod(0o000)
    with as_nobody():
        error = raised(KeyUnavailable, Key.from_file, path)
    tmp_path.chmod(0o700)
    assert "Permission denied" in str(error)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's power to read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


def test_a_missing_file_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    error = raised(KeyUnavailable, Key.from_file, tmp_path / "key")
    assert "No such file" in str(error)
    assert "its own key" in str(error.hint)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    raised(KeyUnavailable, Key.from_file, tmp_path / "dangling")


def test_a_directory_and_a_device_are_refused(tmp_path: Path) -> None:
    assert "a directory" in str(raised(KeyUnavailable, Key.from_file, tmp_path))
    for device in ("/dev/zero", "/dev/urandom", "/dev/null"):
        assert "not a regular file" in str(raised(KeyUnavailable, Key.from_file, device))


@pytest.mark.timeout(10)
def test_a_pipe_without_a_writer_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "not a regular file" in str(raised(KeyUnavailable, Key.from_file, tmp_path / "pipe"))


def test_no_more_than_a_few_hundred_bytes_of_a_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "key"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)
    read: list[int] = []
    original = os.read

    def counted(descriptor: int, most: int) -> bytes:
        data = original(descriptor, most)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "read", counted)
    raised(KeyUnavailable, Key.from_file, path)
    assert 0 < sum(read) < 300


def test_a_file_that_comes_in_pieces_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, most: original(descriptor, min(most, 7)))
    assert Key.from_file(put(tmp_path / "key", OURS.encode())) == Key(SECRET)


def test_a_disk_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, most: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    before = set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None
    path = put(tmp_path / "key", SECRET)
    monkeypatch.setattr(os, "read", broken)
    assert "Input/output error" in str(raised(KeyUnavailable, Key.from_file, path))
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("path", ["", b"/a/key", None, 3, SECRET, SECRET.hex(), OURS, Path(SECRET.hex())])
def test_what_is_no_path_is_refused_and_not_shown_for_it_may_be_the_key(path: Any) -> None:
    raised(InvalidArgument, Key.from_file, path)
    raised(InvalidArgument, Key(SECRET).to_file, path)


@pytest.mark.parametrize("path", ["/a/\0key", "/a/\ud800key"])
def test_a_name_that_the_system_does_not_take_is_an_error(path: str) -> None:
    raised(KeyUnavailable, Key.from_file, path)
    raised(StorageError, Key(SECRET).to_file, path)


def test_without_a_working_directory_a_relative_path_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    raised(KeyUnavailable, Key.from_file, "key")


# -- writing files


def test_a_key_from_a_place_can_change_and_one_that_was_given_cannot(tmp_path: Path) -> None:
    key = Key.generate()
    key.to_file(tmp_path / "key")
    assert not key._can_change()
    assert Key.from_file(tmp_path / "key")._can_change()


def test_a_key_is_written_as_one_line_into_a_private_file_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        Key(SECRET).to_file(path)
    finally:
        os.umask(before)
    assert path.read_text() == OURS + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Key.from_file(path) == Key(SECRET)


def test_a_home_is_known_by_its_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Key(SECRET).to_file("~/key")
    assert Key.from_file(tmp_path / "key") == Key(SECRET)


@pytest.mark.parametrize("what", ["another key", "the same key", "a directory", "a link to nowhere"])
def test_what_is_there_is_never_written_over(tmp_path: Path, what: str) -> None:
    path = tmp_path / "key"
    if what == "a directory":
        path.mkdir()
    elif what == "a link to nowhere":
        path.symlink_to(tmp_path / "nowhere")
    else:
        put(path, SECRET if what == "the same key" else OTHER)
    before = path.read_bytes() if path.is_file() else b""
    error = raised(AlreadyExists, Key(SECRET).to_file, path)
    assert isinstance(error, AlreadyExists)
    assert error.name == str(path)
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert not (tmp_path / "nowhere").exists()


def test_the_file_and_then_its_name_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    original = os.fsync

    def noted(descriptor: int) -> None:
        info = os.fstat(descriptor)
        synced.append("names" if stat.S_ISDIR(info.st_mode) else f"{info.st_size} bytes")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    Key(SECRET).to_file(tmp_path / "key")
    assert synced == [f"{len(OURS) + 1} bytes", "names"]


def test_a_disk_that_is_full_in_the_middle_leaves_no_file(tmp_path: Path) -> None:
    """A real limit: the system takes ten bytes and refuses the others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        error = raised(StorageError, Key(SECRET).to_file, tmp_path / "key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "cannot be written" in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", [1, 2])
def test_a_sync_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int) -> None:
    calls: list[int] = []

    def broken(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == which:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    raised(StorageError, Key(SECRET).to_file, tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_who_is_interrupted_while_writing_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        Key(SECRET).to_file(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []
    told = tells(caught.value)
    assert not [trace for trace in TRACES if trace in told]


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    raised(StorageError, Key(SECRET).to_file, tmp_path / "folder" / "key")
    assert list(tmp_path.iterdir()) == []


# -- credentials of systemd


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "credentials"
    folder.mkdir(0o700)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(folder))
    return folder


@pytest.mark.parametrize("mode", [0o400, 0o440])
def test_a_credential_is_found_by_its_name_also_where_an_access_list_shows_as_the_group(
    credentials: Path, mode: int
) -> None:
    put(credentials / "hitherto.key", SECRET, mode)
    assert Key.from_credential("hitherto.key") == Key(SECRET)


@pytest.mark.parametrize("mode", [0o444, 0o404, 0o460, 0o450, 0o402])
def test_a_credential_that_is_open_to_others_is_refused(credentials: Path, mode: int) -> None:
    put(credentials / "key", SECRET, mode)
    assert f"mode {mode:04o}" in str(raised(KeyUnavailable, Key.from_credential, "key"))


@pytest.mark.parametrize("name", ["", ".", "..", "../key", "/etc/passwd", "a/b", None, b"key"])
def test_a_credential_has_a_name_and_not_a_path(credentials: Path, name: Any) -> None:
    put(credentials.parent / "key", SECRET)
    raised(InvalidArgument, Key.from_credential, name)


def test_a_credential_that_is_not_there_is_an_error(credentials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the credential" in str(raised(KeyUnavailable, Key.from_credential, "key"))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "")
    assert "LoadCredential=" in str(raised(KeyUnavailable, Key.from_credential, "key").hint)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    assert "LoadCredential=" in str(raised(KeyUnavailable, Key.from_credential, "key").hint)


# -- commands


@pytest.mark.parametrize("data", [SECRET, OURS.encode() + b"\n", SECRET.hex().encode(), BASE64 + b"\r\n"])
def test_a_command_says_the_key_in_any_form(tmp_path: Path, data: bytes) -> None:
    path = put(tmp_path / "a key", data)
    assert Key.from_command(["cat", str(path)]) == Key(SECRET)
    assert Key.from_command(("cat", str(path))) == Key(SECRET)
    assert Key.from_command(f"cat '{path}'") == Key(SECRET)


def test_there_is_no_shell(tmp_path: Path) -> None:
    path = put(tmp_path / "key", SECRET)
    for command in (f"cat {path} > {tmp_path}/copy", f"cat {path}; true", f"cat {path} | cat", "cat $KEY"):
        raised(KeyUnavailable, Key.from_command, command)
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_command_has_our_environment_and_nothing_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", SECRET.hex())
    with standard_input(b"yes"):
        assert subprocess.check_output(["head", "-c", "1"]) == b"y"  # the control: there is something for others
        assert Key.from_command(["sh", "-c", 'test -z "$(cat)" && echo $A_KEY'], timeout_seconds=10) == Key(SECRET)


@contextlib.contextmanager
def standard_input(data: bytes) -> Iterator[None]:
    ours, theirs = os.pipe()
    os.write(theirs, data)
    before = os.dup(0)
    os.dup2(ours, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        for descriptor in (ours, theirs, before):
            os.close(descriptor)


@pytest.mark.parametrize("name", sorted(set(NO_KEYS) - {"a great deal"}))
def test_output_that_is_no_key_is_refused_without_showing_it(tmp_path: Path, name: str) -> None:
    data, said = NO_KEYS[name]
    assert said in str(raised(KeyUnavailable, Key.from_command, ["cat", str(put(tmp_path / "key", data))]))


@pytest.mark.parametrize("status", [1, 7, 255])
def test_a_command_that_fails_is_an_error_with_its_status_whatever_it_said(tmp_path: Path, status: int) -> None:
    script = f"cat '{put(tmp_path / 'key', SECRET)}'; exit {status}"
    assert f"exit status {status}" in str(raised(KeyUnavailable, Key.from_command, ["sh", "-c", script]))


def test_what_a_command_says_on_standard_error_goes_there_and_not_into_the_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path / "key", SECRET)
    raised(KeyUnavailable, Key.from_command, ["sh", "-c", f"cat '{path}' >&2; exit 3"])
    assert SECRET.decode() in capfd.readouterr().err  # the control: it said it


def test_a_command_killed_by_a_signal_is_an_error() -> None:
    assert "signal 9" in str(raised(KeyUnavailable, Key.from_command, ["sh", "-c", "kill -9 $$"]))


def test_a_command_that_is_not_there_or_may_not_run_is_an_error(tmp_path: Path) -> None:
    error = raised(KeyUnavailable, Key.from_command, "no-such-program-here --token=MARKER")
    assert "'no-such-program-here' cannot be started: No such file" in str(error)
    put(tmp_path / "script", b"#!/bin/sh\n")
    assert "Permission denied" in str(raised(KeyUnavailable, Key.from_command, [str(tmp_path / "script")]))
    raised(KeyUnavailable, Key.from_command, ["\ud800"])


def is_gone(pid: int) -> bool:
    """Not even a zombie is left: that would still take a signal."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "script",
    ["exec sleep 60", "exec >&-; exec sleep 60", 'trap "" TERM INT HUP; cat "$1"; while :; do sleep 0.1; done'],
    ids=["silent", "closed its output", "said the key and stays"],
)
def test_a_command_that_does_not_end_is_killed_when_its_time_is_over(tmp_path: Path, script: str) -> None:
    path = put(tmp_path / "key", SECRET)
    command = ["sh", "-c", f'echo $$ > "$1.pid"; {script}', "sh", str(path)]
    begun = time.monotonic()
    error = raised(KeyUnavailable, Key.from_command, command, timeout_seconds=0.3)
    assert 0.3 <= time.monotonic() - begun < SOON
    assert "within 0.3 seconds" in str(error)
    assert is_gone(int(Path(f"{path}.pid").read_text()))


@pytest.mark.timeout(60)
def test_a_process_that_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    path = put(tmp_path / "key", SECRET)
    command = ["sh", "-c", f"cat '{path}'; sleep 30 &"]
    begun = time.monotonic()
    raised(KeyUnavailable, Key.from_command, command, timeout_seconds=0.2)
    assert time.monotonic() - begun < 20  # and not as long as it sleeps


@pytest.mark.timeout(60)
@pytest.mark.parametrize("script", ["exec cat /dev/zero", "exec yes MARKER", 'exec cat "$1" "$1"'])
def test_a_command_that_says_too_much_is_killed_at_once(tmp_path: Path, script: str) -> None:
    path = put(tmp_path / "key", SECRET * 10)
    command = ["sh", "-c", f'echo $$ > "$1.pid"; {script}', "sh", str(path)]
    begun = time.monotonic()
    error = raised(KeyUnavailable, Key.from_command, command)
    assert time.monotonic() - begun < SOON
    assert "more than a key" in str(error)
    assert is_gone(int(Path(f"{path}.pid").read_text()))


@pytest.mark.timeout(60)
def test_a_command_that_is_interrupted_is_killed_and_what_it_said_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "key", SECRET)
    said_it = tmp_path / "key.pid"
    command = ["sh", "-c", 'cat "$1"; echo $$ > "$1.new"; mv "$1.new" "$1.pid"; exec sleep 60', "sh", str(path)]

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        """Where we wait for the command, and so where Control-C finds us."""
        while not said_it.exists():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        Key.from_command(command)
    told = tells(caught.value)
    assert not [trace for trace in TRACES if trace in told]
    assert is_gone(int(said_it.read_text()))


@pytest.mark.parametrize(
    "command",
    [
        *("", "   ", "cat 'MARKER", [], [""], ["cat", None], ["cat", b"MARKER"], ["cat\0"], b"cat MARKER", None, 3),
        *({"cat"}, SECRET, SECRET.hex(), OURS, [OURS]),
    ],
)
def test_what_is_no_command_is_refused_and_not_shown(command: Any) -> None:
    raised(InvalidArgument, Key.from_command, command)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), None, "30"])
def test_a_time_limit_is_a_number_greater_than_zero(seconds: Any) -> None:
    raised(InvalidArgument, Key.from_command, ["echo", "MARKER"], timeout_seconds=seconds)


@pytest.mark.parametrize("seconds", [1, 1e300, 10**400, float("inf")])
def test_a_time_limit_may_be_as_long_as_one_likes(tmp_path: Path, seconds: float) -> None:
    command = ["cat", str(put(tmp_path / "key", SECRET))]
    assert Key.from_command(command, timeout_seconds=seconds) == Key(SECRET)


# -- keyrings


class InMemory(keyring.backend.KeyringBackend):
    """A keyring that holds its entries here; what it is taken for depends on its name."""

    priority = 5

    def __init__(self, **entries: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library is typed in part
        self.entries = {("app", name): text for name, text in entries.items()}
        self.asked = 0

    def get_password(self, service: str, username: str) -> str | None:
        self.asked += 1
        return self.entries.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


class OfTheSystem(InMemory):
    """Stands in for a keyring of the operating system: the fixture below puts it on the list."""


class PlaintextKeyring(InMemory):
    """As in the package keyrings.alt."""


class Pretender(InMemory):
    """Says that it is one of those."""


class Heir(OfTheSystem):
    """Not the class on the list, but one that inherits from it."""


PlaintextKeyring.__module__ = "keyrings.alt.file"
Pretender.__module__, Pretender.__qualname__ = "keyring.backends.SecretService", "Keyring"


@pytest.fixture(autouse=True)
def no_keyring_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring.core, "_keyring_backend", fail.Keyring())  # type: ignore[no-untyped-call]  # as above


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> OfTheSystem:
    on_the_list = (OfTheSystem.__module__, "OfTheSystem")
    monkeypatch.setattr(keys, "_REAL_KEYRINGS", keys._REAL_KEYRINGS | {on_the_list})
    ring = OfTheSystem()
    keyring.set_keyring(ring)
    return ring


def chain(monkeypatch: pytest.MonkeyPatch, *members: keyring.backend.KeyringBackend) -> None:
    """The library's own chain, over these; it sorts them by their priority."""
    for number, member in enumerate(members):
        monkeypatch.setattr(member, "priority", 9 - number, raising=False)
    monkeypatch.setattr(keyring.backend, "get_all_keyring", lambda: list(members))
    keyring.set_keyring(chainer.ChainerBackend())  # type: ignore[no-untyped-call]  # as above


def test_every_keyring_on_the_list_is_one_that_the_library_has() -> None:
    """Modules of other systems can be imported everywhere; they only do not work."""
    for module, name in keys._REAL_KEYRINGS:
        kind = keyring.core._load_keyring_class(f"{module}.{name}")
        assert keys._is_real(kind.__new__(kind))


def test_a_key_is_put_into_the_keyring_as_text_and_fetched_again(ring: OfTheSystem) -> None:
    Key(SECRET).to_keyring("app")
    assert ring.entries == {("app", "hitherto"): OURS}
    assert Key.from_keyring("app") == Key(SECRET)
    Key(OTHER).to_keyring("app", "other")
    assert Key.from_keyring("app", "other") == Key(OTHER)
    assert Key.from_keyring("app", username="hitherto") == Key(SECRET)


@pytest.mark.parametrize("form", FORMS)
def test_an_entry_may_have_any_form_of_text(ring: OfTheSystem, form: str) -> None:
    ring.entries["app", "hitherto"] = FORMS[form]
    assert Key.from_keyring("app") == Key(SECRET)


@pytest.mark.parametrize("text", ["", SECRET.decode(), SECRET.hex()[:-1], OURS * 9, "\ud800", "ä" * 16, "0" * 64])
def test_an_entry_that_is_no_key_is_refused_and_a_password_of_32_letters_is_none(ring: OfTheSystem, text: str) -> None:
    ring.entries["app", "hitherto"] = text
    assert "'hitherto' for 'app'" in str(raised(KeyUnavailable, Key.from_keyring, "app"))
    raised(AlreadyExists, Key(SECRET).to_keyring, "app")
    assert ring.entries["app", "hitherto"] == text


def test_no_entry_is_an_error_and_never_a_fresh_key(ring: OfTheSystem) -> None:
    error = raised(KeyUnavailable, Key.from_keyring, "app")
    assert "no entry 'hitherto' for 'app'" in str(error)
    assert ring.entries == {}


def test_another_key_in_the_keyring_is_never_replaced_and_the_same_is_left_alone(ring: OfTheSystem) -> None:
    Key(SECRET).to_keyring("app")
    error = raised(AlreadyExists, Key(OTHER).to_keyring, "app")
    assert "hitherto for app" in str(error)
    ring.entries["app", "hitherto"] = SECRET.hex()
    Key(SECRET).to_keyring("app")
    assert ring.entries == {("app", "hitherto"): SECRET.hex()}


@pytest.mark.parametrize("kind", [PlaintextKeyring, Pretender, Heir, fail.Keyring, null.Keyring])
def test_what_is_no_keyring_of_the_system_is_refused_by_name_and_not_even_asked(
    ring: OfTheSystem, kind: type[keyring.backend.KeyringBackend]
) -> None:
    other = kind()
    if isinstance(other, InMemory):
        other.entries["app", "hitherto"] = OURS
    keyring.set_keyring(other)
    for call in (Key.from_keyring, Key(OTHER).to_keyring):
        error = raised(KeyUnavailable, call, "app")
        assert f"{kind.__module__}.{kind.__qualname__}" in str(error)
        assert "plain text" in str(error)
        assert "from_file" in str(error.hint)
    if isinstance(other, InMemory):
        assert (other.asked, other.entries) == (0, {("app", "hitherto"): OURS})


def test_the_list_is_what_lets_a_keyring_through(ring: OfTheSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: with its name on the list, the plain one would be used."""
    names = {("keyrings.alt.file", "PlaintextKeyring")}
    monkeypatch.setattr(keys, "_REAL_KEYRINGS", keys._REAL_KEYRINGS | names)
    keyring.set_keyring(PlaintextKeyring(hitherto=OURS))
    raised(KeyUnavailable, Key.from_keyring, "app")  # and is not, as it cannot be found where it says it comes from
    module = type(sys)("keyrings.alt.file")
    module.PlaintextKeyring = PlaintextKeyring  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyrings.alt.file", module)
    assert Key.from_keyring("app") == Key(SECRET)


def test_of_a_chain_only_the_keyrings_of_the_system_are_used(
    ring: OfTheSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, second = PlaintextKeyring(hitherto=Key(OTHER)._text()), OfTheSystem()
    chain(monkeypatch, plain, ring, second)
    raised(KeyUnavailable, Key.from_keyring, "app")
    Key(SECRET).to_keyring("app")
    assert ring.entries == {("app", "hitherto"): OURS}
    assert Key.from_keyring("app") == Key(SECRET)
    assert (plain.asked, second.entries) == (0, {})
    assert keyring.get_password("app", "hitherto") == Key(OTHER)._text()  # the control: the chain itself asks it first


def test_of_a_chain_the_first_that_has_the_entry_answers_and_none_is_shadowed(
    ring: OfTheSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = OfTheSystem(hitherto=OURS)
    chain(monkeypatch, ring, second)
    assert Key.from_keyring("app") == Key(SECRET)
    raised(AlreadyExists, Key(OTHER).to_keyring, "app")
    assert ring.entries == {}
    ring.entries["app", "hitherto"] = Key(OTHER)._text()
    assert Key.from_keyring("app") == Key(OTHER)


def test_a_chain_of_none_but_others_is_refused_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    chain(monkeypatch, PlaintextKeyring(hitherto=OURS), Pretender())
    error = str(raised(KeyUnavailable, Key.from_keyring, "app"))
    assert "keyrings.alt.file.PlaintextKeyring, keyring.backends.SecretService.Keyring" in error
    chain(monkeypatch)
    assert "chainer.ChainerBackend" in str(raised(KeyUnavailable, Key.from_keyring, "app"))


def fails_with(error: Exception) -> Callable[..., str | None]:
    def call(*_: str) -> str | None:
        held = OURS  # as backends do
        raise error from ValueError(held)

    return call


ERRORS = [KeyringLocked("no"), KeyringError(OURS), RuntimeError(OURS), UnicodeDecodeError("utf-8", SECRET, 0, 1, "no")]


@pytest.mark.parametrize("error", ERRORS)
def test_a_keyring_that_is_locked_or_fails_is_an_error_and_the_next_is_not_asked(
    ring: OfTheSystem, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    second = OfTheSystem(hitherto=OURS)
    chain(monkeypatch, ring, second)
    monkeypatch.setattr(ring, "get_password", fails_with(error), raising=False)
    for call in (Key.from_keyring, Key(SECRET).to_keyring):
        said = str(raised(KeyUnavailable, call, "app"))
        assert ("is locked" if isinstance(error, KeyringLocked) else type(error).__name__) in said
    assert second.asked == 0


@pytest.mark.parametrize("error", [PasswordSetError(OURS), *ERRORS])
def test_a_keyring_that_does_not_take_the_key_is_an_error(
    ring: OfTheSystem, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(ring, "set_password", fails_with(error), raising=False)
    raised(KeyUnavailable, Key(SECRET).to_keyring, "app")


@pytest.mark.parametrize("kept", [None, Key(OTHER)._text(), "something"])
def test_a_keyring_that_forgets_at_once_is_noticed(
    ring: OfTheSystem, monkeypatch: pytest.MonkeyPatch, kept: str | None
) -> None:
    def forget(service: str, username: str, password: str) -> None:
        if kept is not None:
            ring.entries[service, username] = kept

    monkeypatch.setattr(ring, "set_password", forget, raising=False)
    assert "did not keep" in str(raised(KeyUnavailable, Key(SECRET).to_keyring, "app"))


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    for call in (Key.from_keyring, Key(SECRET).to_keyring):
        assert raised(KeyUnavailable, call, "app").hint == 'pip install "hitherto[keyring]"'


def test_a_library_that_is_set_to_what_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring.core, "_keyring_backend", None)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "no.such.Keyring")
    assert "PYTHON_KEYRING_BACKEND" in str(raised(KeyUnavailable, Key.from_keyring, "app").hint)


@pytest.mark.parametrize("entry", [("", "a"), ("a", ""), (None, "a"), ("a", None), (b"a", "a")])
def test_an_entry_has_a_service_and_a_username(ring: OfTheSystem, entry: tuple[Any, Any]) -> None:
    raised(InvalidArgument, Key.from_keyring, *entry)
    raised(InvalidArgument, Key(SECRET).to_keyring, *entry)
    assert ring.asked == 0


# -- a real Secret Service

SECRET_SERVICE = """
import os
import keyring
import secretstorage
from hitherto.errors import AlreadyExists, KeyUnavailable
from hitherto.keys import Key

assert type(keyring.get_keyring()).__module__ == "keyring.backends.SecretService", keyring.get_keyring()

def refused(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        assert error.hint and error.__context__ is None
        return str(error)
    raise AssertionError("it was not refused")

assert "no entry" in refused(KeyUnavailable, Key.from_keyring, "hitherto-test")
key, other = Key.generate(), Key.generate()
key.to_keyring("hitherto-test")
assert Key.from_keyring("hitherto-test") == key
assert keyring.get_password("hitherto-test", "hitherto").startswith("hitherto-key-1:")
key.to_keyring("hitherto-test")
refused(AlreadyExists, other.to_keyring, "hitherto-test")
assert Key.from_keyring("hitherto-test") == key

held = Key.from_keyring("hitherto-test")
assert held._again() is None
keyring.delete_password("hitherto-test", "hitherto")
refused(KeyUnavailable, held._again)
other.to_keyring("hitherto-test")
assert held._again() == other

data = os.environ["XDG_DATA_HOME"]
stored = b"".join(open(os.path.join(at, name), "rb").read() for at, _, names in os.walk(data) for name in names)
assert stored and b"hitherto-key-1:" not in stored  # it is kept encrypted

bus = secretstorage.dbus_init()
secretstorage.get_default_collection(bus).lock()
bus.close()
assert "is locked" in refused(KeyUnavailable, Key.from_keyring, "hitherto-test")  # nobody is there to unlock it
assert "is locked" in refused(KeyUnavailable, key.to_keyring, "hitherto-test", "another")
print("the Secret Service works")
"""


@pytest.mark.timeout(120)
def test_a_real_secret_service_keeps_and_gives_the_key(tmp_path: Path) -> None:
    """GNOME Keyring on a bus of its own, with a home of its own; both end with the session."""
    for program in ("dbus-run-session", "gnome-keyring-daemon"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here")
    pytest.importorskip("secretstorage", reason="keyring speaks to the Secret Service through it")
    folders = {"HOME": "home", "XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": "config", "XDG_RUNTIME_DIR": "run"}
    for folder in folders.values():
        (tmp_path / folder).mkdir(0o700)
    unset = (
        "DBUS_SESSION_BUS_ADDRESS",
        "GNOME_KEYRING_CONTROL",
        "PYTHON_KEYRING_BACKEND",
        "DISPLAY",
        "WAYLAND_DISPLAY",
    )
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {name: str(tmp_path / folder) for name, folder in folders.items()}
    (tmp_path / "script.py").write_text(SECRET_SERVICE)
    start = 'printf password | gnome-keyring-daemon --unlock --components=secrets >/dev/null && exec "$@"'
    command = ["dbus-run-session", "--", "sh", "-c", start, "sh", sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the Secret Service works\n"


# -- asking again


def test_a_key_without_a_source_has_nobody_to_ask() -> None:
    assert Key(SECRET)._again() is None
    assert Key.generate()._again() is None


def check_again(key: Key, rotate: Callable[[bytes], object], lose: Callable[[], object]) -> None:
    assert key._again() is None
    rotate(Key(OTHER)._text().encode())
    now = key._again()
    assert now == Key(OTHER)
    assert key == Key(SECRET)  # what is held stays what it is
    assert now is not None
    assert now._again() is None
    rotate(OURS.encode())
    assert now._again() == Key(SECRET)
    lose()
    raised(KeyUnavailable, key._again)


def test_a_file_is_asked_again_also_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "key", SECRET)
    monkeypatch.chdir(tmp_path)
    key = Key.from_file("key")
    monkeypatch.chdir("/")
    check_again(key, path.write_bytes, path.unlink)


def test_a_second_copy_of_the_same_key_is_wiped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = Key.from_file(put(tmp_path / "key", SECRET))
    wiped: list[Key] = []
    original = Key.wipe

    def noted(one: Key) -> None:
        wiped.append(one)
        original(one)

    monkeypatch.setattr(Key, "wipe", noted)
    assert key._again() is None
    assert [one._secret for one in wiped] == [bytearray(32)]
    assert key == Key(SECRET)


def test_a_link_that_is_turned_to_another_file_is_followed_again(tmp_path: Path) -> None:
    """As mounted secrets are renewed."""
    put(tmp_path / "first", SECRET)
    put(tmp_path / "second", OTHER)
    (tmp_path / "key").symlink_to("first")
    key = Key.from_file(tmp_path / "key")
    (tmp_path / "new").symlink_to("second")
    os.replace(tmp_path / "new", tmp_path / "key")
    assert key._again() == Key(OTHER)


def test_a_file_that_was_opened_to_others_meanwhile_is_not_believed(tmp_path: Path) -> None:
    path = put(tmp_path / "key", SECRET)
    key = Key.from_file(path)
    path.chmod(0o644)
    raised(KeyUnavailable, key._again)


def test_a_credential_is_asked_again(credentials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(credentials / "key", SECRET)
    key = Key.from_credential("key")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    check_again(key, path.write_bytes, path.unlink)


def test_a_command_is_run_again(tmp_path: Path) -> None:
    path = put(tmp_path / "key", SECRET)
    command = ["cat", str(path)]
    key = Key.from_command(command)
    command[:] = ["false"]  # the list stays the caller's
    check_again(key, path.write_bytes, path.unlink)


def test_a_keyring_is_asked_again(ring: OfTheSystem) -> None:
    entry = ("app", "name")
    ring.entries[entry] = OURS
    key = Key.from_keyring(*entry)
    check_again(key, lambda text: ring.entries.update({entry: text.decode()}), ring.entries.clear)
