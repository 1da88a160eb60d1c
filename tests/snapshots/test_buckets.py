"""One contract for everything that snapshots can lie in; then what is true of folders alone.

Requirements: A5, A6, A8.
"""

import errno
import json
import os
import resource
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hitherto.errors import (
    Busy,
    CannotOpen,
    Conflict,
    Damaged,
    HithertoError,
    InvalidArgument,
    MissingExtra,
    PayloadTooLarge,
    StorageError,
    StorageFull,
)
from hitherto.snapshots import _files
from hitherto.snapshots._bucket import Bucket, Content
from hitherto.snapshots._files import DiskFiles, MemoryFiles
from hitherto.snapshots._objects import bucket_at, bucket_on

from ..support.cloud import Azurite, Moto

MOST = 1 << 20
NAME = "0b9c2d84-3f0e-4a6b-9d52-6a1a1f0c7e11.json"
Open = Callable[[], Bucket]


KINDS = ["disk", "memory files", "file://", "memory://", "a MemoryStore", "s3://", "az://"]


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, place: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the same bucket, which nobody has used before, each time it is called."""
    match request.param:
        case "disk":
            return lambda: DiskFiles().folder(str(place / "a" / "folder"))
        case "memory files":
            files = MemoryFiles()
            return lambda: files.folder("~/a/folder")
        case "file://":
            return lambda: bucket_at((place / "a folder").as_uri())
        case "memory://":
            bucket = bucket_at("memory:///some/prefix")
            return lambda: bucket
        case "a MemoryStore":
            from obstore.store import MemoryStore

            store = MemoryStore()
            return lambda: bucket_on(store, "some/prefix")
    server: Moto | Azurite = request.getfixturevalue("moto" if request.param == "s3://" else "azurite")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    url = server.make() + "/some/prefix"
    return lambda: bucket_at(url, timeout_seconds=20, retries=1)


@pytest.fixture
def bucket(opened: Open) -> Bucket:
    return opened()


def content(bucket: Bucket, name: str = NAME) -> Content:
    found = bucket.get(name, MOST)
    assert found is not None
    return found


def names(bucket: Bucket, prefix: str = "") -> list[str]:
    return sorted(thing.name for thing in bucket.things(prefix))


# -- the contract


def test_a_bucket_that_nobody_has_used_is_empty(bucket: Bucket) -> None:
    assert list(bucket.things()) == []
    assert list(bucket.things("media/")) == []
    assert list(bucket.stray()) == []
    assert bucket.get(NAME, MOST) is None
    assert bucket.get("media/x", MOST, whole=False) is None
    assert bucket.remove(NAME) is False


def test_what_was_put_is_there_for_everybody(opened: Open) -> None:
    tag = opened().put(NAME, b"\0some bytes\xff")
    assert opened().get(NAME, MOST) == Content(b"\0some bytes\xff", 12, tag)
    assert [(thing.name, thing.size, thing.tag) for thing in opened().things()] == [(NAME, 12, tag)]


def test_other_bytes_have_another_tag(opened: Open) -> None:
    seen = [opened().put(NAME, data) for data in (b"1", b"2", b"3", b"44")]
    assert len(set(seen)) == 4
    assert content(opened()).data == b"44"
    assert content(opened()).tag == seen[-1]


def test_what_must_not_be_there_is_put_once(opened: Open) -> None:
    tag = opened().put(NAME, b"first", None)
    with pytest.raises(Conflict) as caught:
        opened().put(NAME, b"second", None)
    assert caught.value.head == tag
    assert content(opened()) == Content(b"first", 5, tag)


def test_a_put_that_expects_something_else_changes_nothing(opened: Open) -> None:
    old = opened().put(NAME, b"old")
    new = opened().put(NAME, b"new")
    with pytest.raises(Conflict) as caught:
        opened().put(NAME, b"mine", old)
    assert (caught.value.expected, caught.value.head) == (old, new)
    assert content(opened()).data == b"new"
    opened().put(NAME, b"mine", new)
    assert content(opened()).data == b"mine"


def test_a_tag_can_be_expected_wherever_it_was_seen(bucket: Bucket) -> None:
    bucket.put(NAME, b"1")
    bucket.put(NAME, b"2", next(bucket.things()).tag)
    bucket.put(NAME, b"3", content(bucket).tag)
    beginning = bucket.get(NAME, 1, whole=False)
    assert beginning is not None
    bucket.put(NAME, b"4", beginning.tag)
    assert content(bucket).data == b"4"


def test_what_is_gone_fits_no_expectation(bucket: Bucket) -> None:
    last = bucket.put(NAME, b"1")
    assert bucket.remove(NAME)
    for expected in (last, "no such tag", "", '"', "*", 'W/"x"', "é", "a\r\nb: c", "x" * 10_000):
        with pytest.raises(Conflict):
            bucket.put(NAME, b"2", expected)
    assert bucket.get(NAME, MOST) is None
    bucket.put(NAME, b"3", None)


def test_removing_takes_away_one_thing_once(opened: Open) -> None:
    opened().put(NAME, b"1")
    opened().put("other", b"2")
    assert opened().remove(NAME) is True
    assert opened().remove(NAME) is False
    assert names(opened()) == ["other"]


def test_names_below_a_slash_are_listed_apart(opened: Open) -> None:
    for name in ("abc", "abd", "media/abc", "media/xyz", "mediaeval"):
        opened().put(name, name.encode())
    assert names(opened()) == ["abc", "abd", "mediaeval"]
    assert names(opened(), "ab") == ["abc", "abd"]
    assert names(opened(), "abd") == ["abd"]
    assert names(opened(), "media") == ["mediaeval"]
    assert names(opened(), "media/") == ["media/abc", "media/xyz"]
    assert names(opened(), "media/x") == ["media/xyz"]
    assert names(opened(), "nothing/") == []
    assert content(opened(), "media/abc").data == b"media/abc"
    assert opened().remove("media/abc")
    assert names(opened(), "media/") == ["media/xyz"]


def test_names_are_kept_as_they_are(bucket: Bucket) -> None:
    odd = [".hidden", "a b", "a%2Fb", "ä.json", "a~b", "a+b&c=d", "x" * 200, "日本語"]
    for name in odd:
        bucket.put(name, name.encode())
    assert names(bucket) == sorted(odd)
    for name in odd:
        assert content(bucket, name).data == name.encode()


@pytest.mark.parametrize("size", [0, 1, 9, 10])
def test_as_much_as_is_allowed_is_read(bucket: Bucket, size: int) -> None:
    data = b"0123456789"[:size]
    tag = bucket.put(NAME, data)
    assert bucket.get(NAME, 10) == Content(data, size, tag)
    assert bucket.get(NAME, 10, whole=False) == Content(data, size, tag)
    assert bucket.get(NAME, size) == Content(data, size, tag)
    assert bucket.get(NAME, size, whole=False) == Content(data, size, tag)


def test_more_than_is_allowed_is_refused_or_cut(bucket: Bucket) -> None:
    tag = bucket.put(NAME, b"0123456789")
    for most in (0, 1, 9):
        assert bucket.get(NAME, most, whole=False) == Content(b"0123456789"[:most], 10, tag)
        with pytest.raises(PayloadTooLarge) as caught:
            bucket.get(NAME, most)
        assert (caught.value.size, caught.value.limit) == (10, most)
        assert "max_attachment" not in str(caught.value.hint)


@pytest.mark.parametrize("conditional", [False, True])
def test_large_things_are_kept_whole(opened: Open, conditional: bool) -> None:
    data = os.urandom(1 << 20) * 17  # more than what is put in one piece
    tag = opened().put(NAME, data, None) if conditional else opened().put(NAME, data)
    found = opened().get(NAME, len(data))
    assert found is not None
    assert (found.size, found.tag) == (len(data), tag)
    assert found.data == data
    opened().put(NAME, b"small", tag)
    assert content(opened()).data == b"small"


WRONG = [
    "",
    ".",
    "..",
    "../x",
    "x/..",
    "/x",
    "x/",
    "//",
    "a/b/c",
    "a\\b",
    "a\0b",
    "media/..",
    "media/",
    "./x",
    "a\ud800",
]
WRONG += ["a\ud800", ".lock", ".unfinished", "media/.unfinished", ".lock/x"]


def test_names_that_could_lead_elsewhere_are_refused(opened: Open) -> None:
    bucket = opened()
    for name in WRONG:
        with pytest.raises(InvalidArgument):
            bucket.put(name, b"")
        with pytest.raises(InvalidArgument):
            bucket.put(name, b"", None)
        with pytest.raises(InvalidArgument):
            bucket.get(name, 1)
        with pytest.raises(InvalidArgument):
            bucket.remove(name)
    assert names(bucket) == []


def add_up(opened: Open, times: int) -> int:
    """Raise the number that is there, again and again. Returns how often somebody else was faster."""
    bucket, conflicts = opened(), 0
    for _ in range(times):
        while True:
            found = bucket.get(NAME, MOST)
            number = 0 if found is None else int(found.data)
            try:
                bucket.put(NAME, b"%d" % (number + 1), None if found is None else found.tag)
                break
            except Conflict:
                conflicts += 1
    return conflicts


def test_no_update_of_several_threads_is_lost(opened: Open) -> None:
    threads = [threading.Thread(target=add_up, args=(opened, 5)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content(opened()).data == b"20"


def test_without_an_expectation_the_last_one_wins(opened: Open) -> None:
    """The control of the tests above: an update is lost if nothing is expected."""
    opened().put(NAME, b"mine")
    opened().put(NAME, b"yours")
    assert content(opened()).data == b"yours"


def test_a_reader_never_sees_a_part(opened: Open) -> None:
    values = [bytes([number]) * 50_000 for number in range(4)]
    bucket = opened()
    bucket.put(NAME, values[0])
    ended = threading.Event()

    def write() -> None:
        for _ in range(5):
            for value in values:
                bucket.put(NAME, value)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    reader, seen = opened(), 0
    while not ended.is_set() or not seen:
        found = content(reader)
        assert found.data in values
        seen += 1
    writer.join()


def test_where_it_is_can_be_said(bucket: Bucket) -> None:
    assert bucket.where
    for value in ("secret", "known-to-nobody", "Eby8", "127.0.0.1"):
        assert value not in bucket.where + repr(bucket)


# -- folders on a disk


@pytest.fixture
def path(place: Path) -> Path:
    return place / "one" / "two"


@pytest.fixture
def folder(path: Path) -> Bucket:
    return DiskFiles().folder(str(path))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o277, 0o777])
def test_files_and_folders_are_private_whatever_the_umask(folder: Bucket, path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder.put(NAME, b"1")
        folder.put("media/x", b"1")
    finally:
        os.umask(before)
    assert [mode(place) for place in (path.parent, path, path / "media")] == [0o700] * 3
    assert [mode(place) for place in (path / NAME, path / "media" / "x", path / ".lock")] == [0o600] * 3


def test_nothing_is_made_before_the_first_put(folder: Bucket, path: Path) -> None:
    assert list(folder.things()) == []
    assert folder.get(NAME, MOST) is None
    assert not folder.remove(NAME)
    with pytest.raises(InvalidArgument):
        folder.put("../x", b"")
    with pytest.raises(Conflict):
        folder.put(NAME, b"", "a tag")
    assert not path.parent.exists()


def test_a_home_directory_is_expanded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    bucket = DiskFiles().folder("~/snapshots")
    bucket.put(NAME, b"1")
    assert (place / "snapshots" / NAME).read_bytes() == b"1"
    assert bucket.where == str(place / "snapshots")


@pytest.mark.parametrize("wrong", ["", "a\0b", "~nobody-has-this-name/x", "a\ud800"])
@pytest.mark.parametrize("files", [DiskFiles(), MemoryFiles()])
def test_what_is_no_path_is_refused(files: DiskFiles | MemoryFiles, wrong: str) -> None:
    with pytest.raises(InvalidArgument):
        files.folder(wrong)


@pytest.mark.parametrize("wrong", [None, 5, b"x", Path("x")])
@pytest.mark.parametrize("open_it", [DiskFiles().folder, MemoryFiles().folder, bucket_at])
def test_a_place_that_is_no_text_is_refused(open_it: Callable[[str], Bucket], wrong: str) -> None:
    with pytest.raises(InvalidArgument):
        open_it(wrong)


@pytest.mark.parametrize("wrong", ["a", None, True, -1, 1e300, 10**400, float("nan"), float("inf"), b"1"])
def test_what_is_no_time_to_wait_is_refused(wrong: float, place: Path) -> None:
    for open_it in (
        lambda: DiskFiles(timeout_seconds=wrong),
        lambda: bucket_at(place.as_uri(), timeout_seconds=wrong),
        lambda: bucket_at("memory://", timeout_seconds=wrong),
        lambda: bucket_at("s3://bucket", timeout_seconds=wrong),
    ):
        with pytest.raises(InvalidArgument, match="timeout_seconds"):
            open_it()


@pytest.mark.parametrize("wrong", ["a", None, True, -1, 1.5, 1001, 10**400, float("nan")])
@pytest.mark.parametrize("url", ["file:///x", "memory://", "s3://bucket"])
def test_what_is_no_number_of_retries_is_refused(wrong: int, url: str) -> None:
    with pytest.raises(InvalidArgument, match="retries"):
        bucket_at(url, retries=wrong)


def test_the_longest_times_and_the_most_retries_are_understood(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")
    bucket_at("s3://bucket", timeout_seconds=1e9, retries=1000)
    for seconds in (0, 1e9):
        DiskFiles(timeout_seconds=seconds).folder(str(place / "x")).put(NAME, b"1")
    with pytest.raises(InvalidArgument, match="more than 0"):
        bucket_at("s3://bucket", timeout_seconds=0)


def test_a_path_that_is_too_long_is_refused_and_nothing_is_made(place: Path) -> None:
    bucket = DiskFiles().folder(str(place) + "/a" * 3000)
    for call in (lambda: bucket.put(NAME, b"1"), lambda: bucket.get(NAME, MOST), lambda: list(bucket.things())):
        with pytest.raises(InvalidArgument, match="too long"):
            call()
    assert list(place.iterdir()) == []


def test_a_folder_may_be_far_down(place: Path) -> None:
    """As far as a path reaches: that is more levels than Python calls functions in each other."""
    deep = str(place) + "/a" * ((4000 - len(str(place))) // 2)
    folder = DiskFiles().folder(deep)
    folder.put(NAME, b"1")
    assert content(folder).data == b"1"
    for name in os.listdir(deep):
        os.unlink(f"{deep}/{name}")
    os.removedirs(deep)  # which does not call itself for each, as others do
    place.mkdir(exist_ok=True)


def test_a_folder_stays_where_it_was_when_the_working_directory_changes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    bucket = DiskFiles().folder("here")
    monkeypatch.chdir("/")
    bucket.put(NAME, b"1")
    assert (place / "here" / NAME).exists()


def test_links_in_the_folder_are_not_followed(folder: Bucket, path: Path, place: Path) -> None:
    folder.put("other", b"1")
    outside = place / "outside"
    outside.write_bytes(b"not yours")
    (path / NAME).symlink_to(outside)
    with pytest.raises(Damaged, match="link"):
        folder.get(NAME, MOST)
    assert names(folder) == ["other"]
    assert list(folder.stray()) == [(NAME, "a link, which is not followed")]
    with pytest.raises(Conflict):
        folder.put(NAME, b"mine", None)
    folder.put(NAME, b"mine")  # replaces the link, not what it points to
    assert content(folder).data == b"mine"
    assert outside.read_bytes() == b"not yours"
    assert list(folder.stray()) == []


def test_removing_a_link_leaves_what_it_points_to(folder: Bucket, path: Path, place: Path) -> None:
    outside = place / "outside"
    outside.write_bytes(b"not yours")
    folder.put("other", b"1")
    (path / NAME).symlink_to(outside)
    assert folder.remove(NAME)
    assert outside.read_bytes() == b"not yours"
    assert names(folder) == ["other"]


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_place_of_the_lock_is_not_followed(folder: Bucket, path: Path, place: Path, dangling: bool) -> None:
    outside = place / "outside"
    if not dangling:
        outside.write_bytes(b"not yours")
    path.mkdir(parents=True)
    (path / ".lock").symlink_to(outside)
    with pytest.raises(Damaged, match="link"):
        folder.put(NAME, b"1")
    assert not (path / NAME).exists()
    assert outside.exists() is not dangling


def test_a_link_in_place_of_the_unfinished_file_is_not_followed(folder: Bucket, path: Path, place: Path) -> None:
    outside = place / "outside"
    outside.write_bytes(b"not yours")
    path.mkdir(parents=True)
    (path / ".unfinished").symlink_to(outside)
    folder.put(NAME, b"1")
    assert outside.read_bytes() == b"not yours"
    assert not (path / NAME).is_symlink()


def test_a_link_in_place_of_an_inner_folder_is_not_followed(folder: Bucket, path: Path, place: Path) -> None:
    outside = place / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"not yours")
    folder.put("other", b"1")
    (path / "media").symlink_to(outside)
    for call in (
        lambda: folder.get("media/x", MOST),
        lambda: folder.put("media/x", b"mine"),
        lambda: folder.put("media/y", b"mine"),
        lambda: folder.remove("media/x"),
        lambda: list(folder.things("media/")),
    ):
        with pytest.raises(StorageError):
            call()
    assert [entry.name for entry in outside.iterdir()] == ["x"]
    assert (outside / "x").read_bytes() == b"not yours"


def test_a_writer_that_follows_links_is_caught_by_these_tests(path: Path, place: Path) -> None:
    """The control: what a plain write does to the same link."""
    outside = place / "outside"
    outside.write_bytes(b"not yours")
    path.mkdir(parents=True)
    (path / NAME).symlink_to(outside)
    (path / NAME).write_bytes(b"mine")
    assert outside.read_bytes() == b"mine"


def test_the_folder_itself_may_be_reached_through_links(path: Path, place: Path) -> None:
    (place / "real").mkdir()
    (place / "one").symlink_to(place / "real")
    DiskFiles().folder(str(path)).put(NAME, b"1")
    assert (place / "real" / "two" / NAME).read_bytes() == b"1"


def test_only_files_are_things_and_nothing_blocks(folder: Bucket, path: Path) -> None:
    folder.put("file", b"1")
    os.mkfifo(path / "pipe")
    (path / "directory").mkdir()
    assert names(folder) == ["file"]
    assert sorted(folder.stray()) == [("directory", "a directory"), ("pipe", "a pipe")]
    for name in ("pipe", "directory"):
        with pytest.raises(Damaged):
            folder.get(name, MOST)
    folder.put("pipe", b"2")
    with pytest.raises(StorageError, match="directory"):
        folder.put("directory", b"2")
    assert (path / "directory").is_dir()
    assert not (path / ".unfinished").exists()


def test_a_pipe_in_place_of_the_lock_is_refused(folder: Bucket, path: Path) -> None:
    path.mkdir(parents=True)
    os.mkfifo(path / ".lock")
    with pytest.raises(StorageError, match="pipe"):
        folder.put(NAME, b"1")


def test_names_that_are_not_text_are_told_apart(folder: Bucket, path: Path) -> None:
    folder.put("file", b"1")
    (path / os.fsdecode(b"\xff\xfe")).write_bytes(b"")
    assert names(folder) == ["file"]
    assert list(folder.stray()) == [("\\xff\\xfe", "its name is not text")]


def test_no_more_is_read_than_was_asked_for(folder: Bucket, path: Path) -> None:
    folder.put("file", b"1")
    with (path / NAME).open("wb") as file:
        file.truncate(1 << 40)  # takes no space, and would fill the memory
    with pytest.raises(PayloadTooLarge):
        folder.get(NAME, MOST)
    found = folder.get(NAME, 10, whole=False)
    assert found is not None
    assert (found.data, found.size) == (bytes(10), 1 << 40)


def test_a_file_in_place_of_the_folder_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"a file")
    for wrong in (path, path / "below"):
        bucket = DiskFiles().folder(str(wrong))
        with pytest.raises(CannotOpen):
            bucket.put(NAME, b"")
        with pytest.raises(CannotOpen):
            bucket.get(NAME, 1)
        with pytest.raises(CannotOpen):
            bucket.things()
    assert path.read_bytes() == b"a file"


def test_a_name_that_the_disk_cannot_hold_is_refused(folder: Bucket) -> None:
    with pytest.raises(InvalidArgument):
        folder.put("x" * 300, b"")
    with pytest.raises(InvalidArgument):
        folder.get("x" * 300, 1)


def test_a_folder_that_is_removed_meanwhile_is_made_again(folder: Bucket, path: Path) -> None:
    folder.put(NAME, b"1")
    (path / NAME).unlink()
    (path / ".lock").unlink()
    path.rmdir()
    assert list(folder.things()) == []
    folder.put(NAME, b"2")
    assert content(folder).data == b"2"


# -- permissions, which do not bind root: so as nobody

AS_NOBODY = """
import os, sys
from hitherto.snapshots._files import DiskFiles
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for call in (lambda b: b.put("x", b"1"), lambda b: b.get("x", 9), lambda b: list(b.things()), lambda b: b.remove("x")):
    try:
        call(DiskFiles().folder(sys.argv[1]))
        print("done")
    except BaseException as error:
        print(type(error).__name__)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(
    ("rights", "answers"),
    [(0o000, ["Denied"] * 4), (0o555, ["Denied", "done", "done", "Denied"]), (0o777, ["done"] * 4)],
)
def test_a_folder_without_permission_is_said_to_be(rights: int, answers: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        place = Path(name) / "folder"
        place.mkdir()
        (place / "x").write_bytes(b"1")
        (place / "x").chmod(0o644)
        place.chmod(rights)
        command = [sys.executable, "-c", AS_NOBODY, str(place)]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert ran.stdout.split() == answers
        place.chmod(0o755)


# -- interruptions

DYING = """
import json, os, sys
from hitherto.snapshots import _files

path, how = sys.argv[1:]
write, kill = os.write, os.kill
step = 0

def dying(function, at):
    def call(*args, **kwargs):
        global step
        step += 1
        if step == at:
            kill(os.getpid(), 9)
        if function is write and len(args[1]) > 1:
            args = (args[0], args[1][: len(args[1]) // 2])  # as a disk does that takes a part only
        return function(*args, **kwargs)
    return call

def in_place(name, data):  # the control
    descriptor = os.open(os.path.join(path, name), os.O_WRONLY | os.O_TRUNC)
    while data:
        data = data[os.write(descriptor, data) :]
    os.fsync(descriptor)
    os.close(descriptor)

def killed_at(at):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    for name in "open write fsync replace unlink close mkdir chmod fchmod utime stat fstat".split():
        setattr(os, name, dying(getattr(os, name), at))
    (bucket.put if how == "ours" else in_place)("thing", b"new" * 50)
    os._exit(0)

bucket = _files.DiskFiles(timeout_seconds=1).folder(path)
found = []
while True:
    bucket.put("thing", b"old")
    if not killed_at(len(found) + 1):
        break
    things = {thing.name: bucket.get(thing.name, 1000).data.decode() for thing in bucket.things()}
    found.append((things, os.listdir(path)))
print(json.dumps(found))
"""


def after_deaths(path: Path, how: str) -> list[tuple[dict[str, str], list[str]]]:
    """A writer replaces something and is killed, at its first step, at its second, and so on. What is found after each:
    the things, and the names of all files."""
    ran = subprocess.run([sys.executable, "-c", DYING, str(path), how], check=True, capture_output=True, timeout=100)
    found: list[tuple[dict[str, str], list[str]]] = json.loads(ran.stdout)
    return found


def test_a_writer_that_is_killed_anywhere_leaves_the_old_file_or_the_new(path: Path) -> None:
    found = after_deaths(path, "ours")
    assert len(found) > 20
    for things, files in found:
        assert things in ({"thing": "old"}, {"thing": "new" * 50})
        assert set(files) <= {"thing", ".lock", ".unfinished"}
    assert found[0][0] == {"thing": "old"}
    assert found[-1][0] == {"thing": "new" * 50}
    assert any(".unfinished" in files for _, files in found)  # it died in the middle, too
    assert {entry.name for entry in path.iterdir()} == {"thing", ".lock"}  # and the next put tidied up


def test_a_writer_in_place_loses_the_old_file(path: Path) -> None:
    """The control of the test above: the same deaths, without the protection."""
    assert ({"thing": ""}, [".lock", "thing"]) in [(things, sorted(files)) for things, files in after_deaths(path, "x")]


class _InterruptedError(BaseException):
    """Comes at a bad moment, as Ctrl+C does."""


@pytest.mark.parametrize("name", ["write", "fsync", "replace", "fchmod", "utime"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "I/O"), _InterruptedError()]
)
def test_a_put_that_fails_leaves_the_old_file_and_nothing_else(
    folder: Bucket, path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException
) -> None:
    tag = folder.put(NAME, b"old")

    def fail(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(os, name, fail)
        with pytest.raises((HithertoError, _InterruptedError)) as caught:
            folder.put(NAME, b"new" * 100)
    if isinstance(error, OSError):
        assert type(caught.value) is (StorageFull if error.errno == errno.ENOSPC else StorageError)
    assert content(folder) == Content(b"old", 3, tag)
    assert {entry.name for entry in path.iterdir()} == {NAME, ".lock"}
    folder.put(NAME, b"new", tag)


def test_a_limit_on_the_size_of_files_is_a_full_disk(folder: Bucket, path: Path) -> None:
    folder.put(NAME, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StorageFull):
            folder.put(NAME, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert content(folder).data == b"old"
    assert {entry.name for entry in path.iterdir()} == {NAME, ".lock"}


def test_content_and_name_are_on_the_disk_before_a_put_returns(
    folder: Bucket, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: the file, its name, the directory; and each new directory in the one above."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def noting_sync(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def noting_replace(old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        done.append("rename")
        replace(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", noting_sync)
    monkeypatch.setattr(os, "replace", noting_replace)
    folder.put("media/x", b"1")
    above = path.parent.parent.name
    assert done == [f"sync {above}", "sync one", "sync two", "sync .unfinished", "rename", "sync media"]
    del done[:]
    folder.remove("media/x")
    assert done == ["sync media"]


# -- the lock

HOLDER = """
import fcntl, sys
lock = open(sys.argv[1] + "/.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_put_waits_for_another_writer_but_not_for_ever(path: Path) -> None:
    DiskFiles().folder(str(path)).put(NAME, b"1")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        impatient = DiskFiles(timeout_seconds=0.05).folder(str(path))
        for call in (lambda: impatient.put(NAME, b"2"), lambda: impatient.remove(NAME)):
            with pytest.raises(Busy):
                call()
        assert content(impatient).data == b"1"  # readers wait for nobody
        holder.kill()
    DiskFiles(timeout_seconds=1).folder(str(path)).put(NAME, b"3")


def test_a_lock_that_is_replaced_while_we_wait_is_not_taken_for_the_folders(path: Path) -> None:
    bucket = DiskFiles(timeout_seconds=20).folder(str(path))
    bucket.put(NAME, b"1")
    with _files._Directory(str(path)) as directory:
        old = _files._open_lock(directory)
        assert _files._take(old, time.monotonic())
        (path / ".lock").unlink()
        assert not _files._is_at(old, directory)
        bucket.put(NAME, b"2")  # locks the new one
        assert _files._is_at(old, directory) is False
        _files._release(old)
    assert content(bucket).data == b"2"


def test_a_child_that_was_forked_in_the_middle_of_a_put_holds_no_lock(path: Path) -> None:
    """It would hold it on when the parent is killed: here, the parent forgets to unlock."""
    bucket = DiskFiles(timeout_seconds=0.2).folder(str(path))
    bucket.put(NAME, b"1")
    with _files._Directory(str(path)) as directory:
        lock = _files._open_lock(directory)
        assert _files._take(lock, time.monotonic())
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent is done
            os._exit(0)
        try:
            os.close(read)
            _files._held.discard(lock)
            os.close(lock)  # as dying does
            bucket.put(NAME, b"2")
        finally:
            os.close(write)
            os.waitpid(child, 0)


ADDER = """
import sys
from hitherto.errors import Conflict
from hitherto.snapshots._files import DiskFiles
bucket = DiskFiles().folder(sys.argv[1])
for _ in range(int(sys.argv[2])):
    while True:
        found = bucket.get("number", 100)
        try:
            bucket.put("number", b"%d" % (int(found.data) + 1), found.tag)
            break
        except Conflict:
            pass
"""


def test_no_update_of_several_processes_is_lost(folder: Bucket, path: Path) -> None:
    folder.put("number", b"0")
    command = [sys.executable, "-c", ADDER, str(path), "50"]
    for process in [subprocess.Popen(command) for _ in range(3)]:
        assert process.wait(60) == 0
    assert content(folder, "number").data == b"150"


def test_a_tag_is_never_used_twice(tmp_path: Path) -> None:
    folder, tags = DiskFiles().folder(str(tmp_path)), set()
    for number in range(100):
        tags.add(folder.put(NAME, b"same size"))
        if number % 2:
            folder.remove(NAME)
    assert len(tags) == 100


def test_times_go_on_when_the_clock_does_not(folder: Bucket, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk gives the number of a file that is gone to the next one: then the time alone tells them apart."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_123_456_789)
    for number in range(3):
        folder.put(NAME, b"same size")
        assert (path / NAME).stat().st_mtime_ns == 1_700_000_000_123_456_789 + number


def test_ten_thousand_files_are_listed_at_once(folder: Bucket, path: Path) -> None:
    folder.put(NAME, b"1")
    for number in range(10_000):
        os.close(os.open(path / f"{number}", os.O_CREAT | os.O_WRONLY))
    start = time.process_time()
    assert sum(1 for _ in folder.things()) == 10_001
    assert time.process_time() - start < 2  # takes some hundredths


# -- what is not installed


def test_without_obstore_it_is_said_what_installs_it(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtra) as caught:
        bucket_at("s3://bucket")
    assert (caught.value.package, caught.value.extra) == ("obstore", "cloud")
    with pytest.raises(MissingExtra):
        bucket_at("memory://")
    with pytest.raises(MissingExtra):
        bucket_on(object())
    bucket_at((place / "x").as_uri()).put(NAME, b"1")  # a folder needs none


def test_obstore_is_not_loaded_before_it_is_used() -> None:
    program = "import sys, hitherto.snapshots._objects; sys.exit('obstore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
