"""A disk that remembers, so that power can be cut after every single file operation.

SQLite promises that acknowledged data survives a power failure, which a test cannot cause. `FaultDisk`
simulates it. It is a SQLite VFS laid over a real directory. Everything goes through
to real files, locks and shared memory included, so WAL works as it always does; but every create, write,
truncate, sync and delete is also written into a log, and the place in that log is its operation number.
One run of a workload therefore holds all its crash points: `images()` replays the log and lays out, for
each operation, a directory as a disk might hold it had the power failed just after. The test opens that
directory with the ordinary VFS and looks. The workload calls `mark()` when something has been
acknowledged, so that `acknowledged_at(n)` says what an image taken at operation n owes us.

The model. A file is a platter, which survives, and pending writes and truncates, which may not; a
sync moves the pending ones to the platter. Names are separate from files, as on a real disk. A new name
is durable once its file is synced (POSIX does not promise this, but the file systems in use do it), a
deletion once the directory is. SQLite syncs the directory on the first sync of each journal or WAL it
opens, and in xDelete when asked to. Pending operations at a power failure are treated by `Mode`:

  none     everything unsynced is lost, so files may be missing and deleted files may be back;
  all      everything is kept: a killed process rather than a power cut;
  random   each operation is kept or lost by itself, hence also reordered;
  torn     as random, but a kept write may lose any of its 512-byte sectors.

Not modelled: drives that lie about a sync; damage to bytes that were not being written (SQLite
calls their safety "powersafe overwrite", and this disk promises it); garbage instead of zeros in a hole;
blocks of deleted files, which a forensic reader of the raw device may still find; temporary files, and
files in other directories; -shm files, which SQLite rebuilds; -ballast files, which take room and hold
nothing; other processes. The program's own
file operations are not seen either, with two exceptions: a file that the disk meets for the first time counts as
durable with the content it then has, and a program which calls os.fsync on a file or on the directory is
heard if the test puts `disk.fsync` in the place of `os.fsync`.

The same disk also fails while it runs: `fail()` makes one operation, or all from one on, raise an error,
`capacity` makes the disk full, and `syncing` lets it be slow, or hang. No real sync is ever made, because no test
cuts the real power. This makes thousands of crash points affordable.
"""

import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Self, TypeVar

import apsw

Mode = Literal["none", "all", "random", "torn"]
Kind = Literal["adopt", "create", "write", "truncate", "sync", "delete", "failed"]
Result = TypeVar("Result")

SECTOR = 512
_DIRECTORY = 0  # The directory has the file number 0, and files count from 1.
_JOURNALS = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL
_numbers = itertools.count(1)
_real_fsync = os.fsync


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of the log. A file keeps its number when its name is deleted or given to another file."""

    kind: Kind
    name: str
    file: int
    offset: int = 0  # For a truncate, the new size.
    data: bytes = field(default=b"", repr=False)
    directory: bool = False  # A sync or delete which also syncs the directory.


class FaultDisk:
    """The disk over one directory. Use it as a context manager, and its `name` as the name of the VFS."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).resolve()
        self.name = f"faultdisk-{next(_numbers)}"
        self.log: list[Operation] = []
        self.marks: list[tuple[int, str]] = []
        self.capacity: int | None = None
        self.syncing: Callable[[], None] = lambda: None  # called before each sync: to be slow, or to hang
        self._live: dict[str, int] = {}  # The names as the running program sees them.
        self._files = itertools.count(_DIRECTORY + 1)
        self._failures: dict[int, type[apsw.Error]] = {}
        self._off: tuple[int, type[apsw.Error]] | None = None
        self._vfs: _Vfs | None = None
        # SQLite calls from any thread. The lock is held over the real operation and its line in the
        # log together, so that the log has the order in which things happened.
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self._vfs = _Vfs(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._vfs is not None:
            self._vfs.unregister()
            self._vfs = None

    # What the workload and its test say and ask while it runs.

    @property
    def operations(self) -> int:
        """The number of the last operation; the next one has this number plus one."""
        return len(self.log)

    @property
    def used(self) -> int:
        """The bytes in all files, to set `capacity` by."""
        with self._lock:
            return sum((self.directory / name).stat().st_size for name in self._names())

    def mark(self, label: str) -> None:
        """Record that `label` was acknowledged: it must survive any later power cut."""
        with self._lock:
            self.marks.append((self.operations, label))

    def acknowledged_at(self, at: int) -> list[str]:
        return [label for operation, label in self.marks if operation <= at]

    def fail(self, operation: int, error: type[apsw.Error] = apsw.IOError, *, lasting: bool = False) -> None:
        """Let the operation of this number fail, without effect; with `lasting`, all later ones too."""
        with self._lock:
            if lasting:
                self._off = (operation, error)
            else:
                self._failures[operation] = error

    def heal(self) -> None:
        """Remove all scheduled failures, and the capacity."""
        with self._lock:
            self._failures.clear()
            self._off = self.capacity = None

    def fsync(self, descriptor: int) -> None:
        """Stand in for os.fsync, so that the syncs which the program itself makes are in the log."""
        opened = os.fstat(descriptor)
        with self._lock:
            if os.path.samestat(opened, self.directory.stat()):
                self._perform(Operation("sync", ".", _DIRECTORY, directory=True), lambda: None)
                return
            for name in self._names():
                if os.path.samestat(opened, (self.directory / name).stat()):
                    # A stranger needs no sync, since it is durable from the moment the disk meets it.
                    if name in self._live:
                        self._perform(Operation("sync", name, self._live[name]), lambda: None)
                    return
        _real_fsync(descriptor)

    # What a power cut leaves.

    def images(
        self, mode: Mode, into: str | Path, *, seed: int = 0, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[int, Path]]:
        """Yield, for each operation in order, its number and a directory as the power cut leaves it.

        Each image has a fresh directory within `into`, which is removed when the next image is asked for.
        So the image on which a test fails is still there to be looked at. Number 0 is the time before all.
        """
        self._insist_on_a_log()
        log, platter = self.log[:last], _Platter()
        for number in range(len(log) + 1):
            if number:
                platter.apply(log[number - 1])
            if number >= first:
                directory = Path(into, f"{mode}-{seed}-{number:06d}")
                platter.survive(directory, mode, random.Random(f"{seed}/{number}"))
                yield number, directory
                shutil.rmtree(directory)

    def image(self, at: int, mode: Mode, into: str | Path, *, seed: int = 0) -> Path:
        """Lay out the image that `images` has at this operation, in `into` itself; it is not removed."""
        if not 0 <= at <= self.operations:
            raise ValueError(f"no operation {at}: the log ends at {self.operations}")
        platter = _Platter()
        for operation in self.log[:at]:
            platter.apply(operation)
        platter.survive(Path(into), mode, random.Random(f"{seed}/{at}"))
        return Path(into)

    def traces(self, needle: bytes) -> list[int]:
        """Return every operation after which some power cut could leave `needle` in some file.

        This is the worst case over all modes and seeds: whatever stands on a platter may stay there, and
        any pending write may arrive. A needle that is split over two writes is not found, so take a short
        one. Note that an overwrite, truncate or deletion removes nothing until it is synced.
        """
        self._insist_on_a_log()
        platter, found = _Platter(), []
        for number, operation in enumerate(self.log, 1):
            platter.apply(operation)
            if platter.may_hold(needle):
                found.append(number)
        return found

    def _insist_on_a_log(self) -> None:
        # A workload that used another VFS or directory would otherwise pass every test, having met none.
        if not self.log:
            raise ValueError(f"nothing was done in {self.directory} by way of the VFS {self.name}")

    # What the VFS calls.

    def _names(self) -> list[str]:
        # A name that ends in -shm belongs to shared memory and is no part of the disk.
        with os.scandir(self.directory) as entries:
            return sorted(e.name for e in entries if e.is_file() and not e.name.endswith("-shm"))

    def _covers(self, path: str) -> bool:
        return os.path.dirname(path) == str(self.directory)

    def _adopt_strangers(self) -> None:
        for name in self._names():
            if name not in self._live and not name.endswith("-ballast"):
                number = self._live[name] = next(self._files)
                content = (self.directory / name).read_bytes()
                self.log.append(Operation("adopt", name, number, data=content))

    def _perform(self, operation: Operation, really: Callable[[], Result], growth: int = 0) -> Result:
        """Do an operation and log it, or let it fail. A failed operation has a number too, but no effect."""
        with self._lock:
            number = self.operations + 1
            error = self._failures.pop(number, None)
            if error is None and self._off is not None and number >= self._off[0]:
                error = self._off[1]
            if error is None and growth > 0 and self.capacity is not None:
                error = apsw.FullError if self.used + growth > self.capacity else None
            if error is not None:
                self.log.append(Operation("failed", operation.name, operation.file))
                raise error(f"the fault disk fails operation {number}: {operation}")
            result = really()
            self.log.append(operation)
            return result


class _Vfs(apsw.VFS):
    def __init__(self, disk: FaultDisk) -> None:
        self._disk = disk
        super().__init__(disk.name, base="", maxpathname=0)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        disk = self._disk
        if path is None or flags[0] & apsw.SQLITE_OPEN_DELETEONCLOSE or not disk._covers(path):
            return apsw.VFSFile("", name, flags)
        key = os.path.basename(path)
        with disk._lock:
            disk._adopt_strangers()
            if os.path.exists(path) or not flags[0] & apsw.SQLITE_OPEN_CREATE:
                return _File(disk, name, flags, key, disk._live.get(key, _DIRECTORY))
            number = next(disk._files)
            create = Operation("create", key, number)
            opened = disk._perform(create, partial(_File, disk, name, flags, key, number))
            disk._live[key] = number
            return opened

    def xDelete(self, filename: str, syncdir: bool) -> None:
        disk, key = self._disk, os.path.basename(filename)
        with disk._lock:
            if not disk._covers(filename) or not os.path.exists(filename):
                super().xDelete(filename, False)  # A file that is not there is SQLite's own error.
                return
            disk._adopt_strangers()
            operation = Operation("delete", key, disk._live[key], directory=syncdir)
            disk._perform(operation, partial(super().xDelete, filename, False))
            del disk._live[key]


class _File(apsw.VFSFile):
    def __init__(
        self, disk: FaultDisk, name: str | apsw.URIFilename | None, flags: list[int], key: str, number: int
    ) -> None:
        self._disk, self._key, self._number = disk, key, number
        # The unix VFS of SQLite syncs the directory on the first sync of every journal that it opens
        # with leave to create it, whether or not it was new. We do as it does.
        self._new_journal = bool(flags[0] & _JOURNALS and flags[0] & apsw.SQLITE_OPEN_CREATE)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        content = bytes(data)  # SQLite lends its buffer only for the time of the call.
        operation = Operation("write", self._key, self._number, offset, content)
        with self._disk._lock:
            growth = offset + len(content) - self.xFileSize()
            self._disk._perform(operation, partial(super().xWrite, content, offset), growth)

    def xTruncate(self, newsize: int) -> None:
        operation = Operation("truncate", self._key, self._number, newsize)
        self._disk._perform(operation, partial(super().xTruncate, newsize))

    def xSync(self, flags: int) -> None:  # noqa: ARG002 (every kind of sync syncs all)
        self._disk.syncing()  # without the lock, so that a test can talk to a disk that hangs
        operation = Operation("sync", self._key, self._number, directory=self._new_journal)
        self._disk._perform(operation, lambda: None)
        self._new_journal = False

    def xDeviceCharacteristics(self) -> int:
        # The promises of the real file system do not matter here; this is the only one we keep.
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


class _Platter:
    """The state of the disk at one place in the log: what is durable, and what is pending."""

    def __init__(self) -> None:
        self._contents: dict[int, bytearray] = {}
        self._pending: dict[int, list[Operation]] = {}
        self._names: dict[str, int] = {}
        self._pending_names: list[Operation] = []

    def apply(self, operation: Operation) -> None:
        match operation.kind:
            case "adopt" | "create":
                self._contents[operation.file] = bytearray(operation.data)
                self._pending[operation.file] = []
                self._pending_names.append(operation)
                if operation.kind == "adopt":
                    self._sync_name(operation.file)
            case "write" | "truncate":
                self._pending[operation.file].append(operation)
            case "delete":
                self._pending_names.append(operation)
            case "sync" if operation.file != _DIRECTORY:
                for pending in self._pending[operation.file]:
                    _change(self._contents[operation.file], pending)
                self._pending[operation.file].clear()
                self._sync_name(operation.file)
        if operation.directory:
            for pending in self._pending_names:
                _rename(self._names, pending)
            self._pending_names.clear()

    def _sync_name(self, file: int) -> None:
        """Make the name of a new file durable, with all earlier operations on this name."""
        for place, pending in enumerate(self._pending_names):
            if pending.file == file and pending.kind != "delete":
                self._names[pending.name] = file
                self._pending_names = [
                    other
                    for index, other in enumerate(self._pending_names)
                    if index > place or other.name != pending.name
                ]
                return

    def survive(self, directory: Path, mode: Mode, chance: random.Random) -> None:
        """Lay out in `directory` the files that a power cut may leave."""
        # One image loses nearly everything, another hardly anything: both kinds find bugs that an even
        # coin, over a hundred pending writes, would never find.
        odds = {"none": 0.0, "all": 1.0}.get(mode, chance.random())

        def survivors(pending: list[Operation]) -> Iterator[Operation]:
            return (operation for operation in pending if chance.random() < odds)

        names = dict(self._names)
        for operation in survivors(self._pending_names):
            _rename(names, operation)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, file in names.items():
            content = bytearray(self._contents[file])
            for operation in survivors(self._pending[file]):
                torn = mode == "torn" and operation.kind == "write" and chance.random() < 0.5
                for part in _sectors(operation) if torn else (operation,):
                    if not torn or chance.random() < 0.5:
                        _change(content, part)
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as image:
                image.write(content)

    def may_hold(self, needle: bytes) -> bool:
        linked = {o.file for o in self._pending_names if o.kind != "delete"}
        return any(
            needle in self._contents[file] or any(needle in o.data for o in self._pending[file])
            for file in linked.union(self._names.values())
        )


def _rename(names: dict[str, int], operation: Operation) -> None:
    if operation.kind == "delete":
        names.pop(operation.name, None)
    else:
        names[operation.name] = operation.file


def _change(content: bytearray, operation: Operation) -> None:
    # A gap that a lost write left behind reads as zeros, and so does a file that truncate makes longer.
    content.extend(bytes(max(0, operation.offset - len(content))))
    if operation.kind == "truncate":
        del content[operation.offset :]
    else:
        content[operation.offset : operation.offset + len(operation.data)] = operation.data


def _sectors(operation: Operation) -> Iterator[Operation]:
    """Split a write at the sector boundaries of the disk, whatever its own offset."""
    end = operation.offset + len(operation.data)
    start = operation.offset
    while start < end:
        stop = min(end, start - start % SECTOR + SECTOR)
        data = operation.data[start - operation.offset : stop - operation.offset]
        yield Operation("write", operation.name, operation.file, start, data)
        start = stop
