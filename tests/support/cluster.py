"""A primary and two synchronous standbys, real ones, that fail for real.

Three PostgreSQL servers lie in one folder, each with its data and its socket in a folder of its own. A commit is
acknowledged when one of the standbys has it on its disk as well: whichever of the two is further must therefore have
all that was acknowledged. They are killed as a power cut kills a machine, all processes at once, promoted, pointed at
another primary, and brought back as they were. Like `server.Server`, each has a shell beside it that stops it by its
process id, and removes what it leaves, when we say so or are gone.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from .memory import in_memory
from .server import initialise, leftovers, processes, unprivileged

PATIENCE = 60  # seconds, for what takes a part of one
QUORUM = "ANY 1 (a, b, c)"  # one of those that are not the primary

SETTINGS = (
    "listen_addresses=",
    "fsync=on",
    "synchronous_commit=on",  # on the disk, here and there
    f"synchronous_standby_names={QUORUM}",
    "dynamic_shared_memory_type=mmap",  # in the folder
    "autovacuum=off",
    "shared_buffers=16MB",
    "max_connections=60",
    "min_wal_size=4MB",
    "wal_keep_size=64MB",  # for one who was away
    "wal_retrieve_retry_interval=50ms",
    "restart_after_crash=off",  # who is killed stays dead until we start it
)


class Node:
    """One server of a cluster, in a folder of its own."""

    # A line tells the shell that the files are still needed. What a killed server leaves of shared memory is named in
    # a file of its data.
    _KEEPER = """
        "$@" & server=$!
        read -r keep
        kill -QUIT $server 2>/dev/null
        wait $server
        [ "$keep" ] && exit
        set -- $(sed -n 7p "$folder/data/postmaster.pid" 2>/dev/null)
        [ "$2" ] && ipcrm -m "$2"
        rm -rf "$folder"
        rmdir "${folder%/*}" 2>/dev/null
    """

    def __init__(self, binaries: Path, name: str, parent: Path) -> None:
        self.name = name
        self.folder = parent / name
        self.data = self.folder / "data"
        self.conninfo = f"host={self.folder} user=postgres dbname=postgres"
        self._binaries = binaries
        self._user = unprivileged()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._memory = 0

    # -- its files

    def _make_folder(self) -> None:
        self.folder.mkdir()
        if self._user is not None:
            shutil.chown(self.folder, self._user)

    def initialise(self) -> None:
        """Files of its own: a primary that nobody has written to. Small segments are quicker to copy."""
        self._make_folder()
        initialise(self._binaries, self.data, self._user, "--wal-segsize=1")
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines("{} = '{}'\n".format(*setting.split("=", 1)) for setting in SETTINGS)

    def copy(self, other: "Node") -> None:
        """The files of another one, which runs, to follow it."""
        self._make_folder()
        made: list[str | Path] = [self._binaries / "pg_basebackup", "-d", other.conninfo, "-D", self.data]
        subprocess.run([*made, "-c", "fast", "--no-sync"], user=self._user, check=True, capture_output=True, cwd="/")
        (self.data / "standby.signal").touch()
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.write(f"primary_conninfo = '{other.conninfo} application_name={self.name}'\n")

    # -- its life

    def start(self, *settings: str) -> None:
        """Start it on the files that are there, with these `name=value` over what they say."""
        self._release(keep=True)
        started: list[str | Path] = [self._binaries / "postgres", "-D", self.data, "-k", self.folder]
        started += [part for setting in (f"cluster_name={self.name}", *settings) for part in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            self._keeper = subprocess.Popen(
                ["/bin/sh", "-c", self._KEEPER, "sh", *started],
                stdin=subprocess.PIPE, stdout=log, stderr=log,
                user=self._user, start_new_session=True, cwd="/", env={**os.environ, "folder": str(self.folder)},
            )  # fmt: skip
        self._wait_until_ready()
        self._memory = int((self.data / "postmaster.pid").read_text().splitlines()[6].split()[1])

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise AssertionError((self.folder / "log").read_text()[-2000:]) from error
            time.sleep(0.01)

    @property
    def runs(self) -> bool:
        return bool(processes(self.data))

    def kill(self) -> None:
        """As if the machine had lost its power: first nothing moves any more, then nothing is there."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for id in processes(self.data):
                _send(id, number)
        self._wait_until_gone()

    def halt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop it in order: SIGINT ends what connections do, SIGQUIT drops everything as it is."""
        _send(int((self.data / "postmaster.pid").read_text().splitlines()[0]), number)
        self._wait_until_gone()

    def _wait_until_gone(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.runs:
            assert time.monotonic() < deadline, f"{self.name} does not end"
            time.sleep(0.005)

    def signal(self, title: str, number: signal.Signals) -> None:
        """Send it to those of its processes that have a word in their title."""
        found = [id for id in processes(self.data) if title in _title(id)]
        assert found, f"{self.name} has no {title}"
        for id in found:
            _send(id, number)

    def _release(self, *, keep: bool) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.communicate(b"keep\n" if keep else None, timeout=PATIENCE)

    def remove(self) -> None:
        """Stop it if it runs, and remove all that it left."""
        if self._keeper is not None:
            self.kill()  # what is stopped in its tracks would not hear anything else
            self._release(keep=False)
        shutil.rmtree(self.folder, ignore_errors=True)  # if it was never started

    # -- what it says

    def ask(self, query: str, *values: object) -> Any:
        """The first value of the answer to a question."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            row = connection.execute(query, values).fetchone()
            return None if row is None else row[0]

    def until(self, query: str, *values: object) -> None:
        """Wait until the answer is yes."""
        deadline = time.monotonic() + PATIENCE
        while not self.ask(query, *values):
            assert time.monotonic() < deadline, f"{self.name} never came to {query}"
            time.sleep(0.01)

    def set(self, name: str, value: str) -> None:
        """Change one of its settings while it runs."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        self.until("SELECT current_setting(%s) = %s", name, value)

    def leftovers(self) -> list[str]:
        return leftovers(self.folder, self._memory)


class Cluster:
    """A primary with two synchronous standbys."""

    def __init__(self, binaries: Path) -> None:
        folder = in_memory() or "/tmp"  # a socket's path must be short
        self.folder = Path(tempfile.mkdtemp(prefix="hitherto-pg-", dir=folder))
        self.folder.chmod(0o711)
        if (user := unprivileged()) is not None:
            shutil.chown(self.folder, user)
        self.nodes = [Node(binaries, name, self.folder) for name in "abc"]
        self.primary = self.nodes[0]
        try:
            self.primary.initialise()
            self.primary.start()
            self.mend()
        except BaseException:
            self.stop()
            raise

    @property
    def standbys(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.primary]

    def url(self, *nodes: Node, user: str = "postgres", **parameters: str) -> str:
        """All of them, or these, for who writes."""
        given = {"target_session_attrs": "read-write", "user": user, **parameters}
        hosts = ",".join(str(node.folder) for node in nodes or self.nodes)
        return f"postgresql:///postgres?host={hosts}&" + "&".join(f"{name}={value}" for name, value in given.items())

    # -- what happens to it

    def fail_over(self) -> Node:
        """The primary loses its power, and the standby that has most takes its place. The old primary."""
        old = self.primary
        old.kill()
        self.promote()
        return old

    def promote(self) -> None:
        """Make the standby that has most the primary, and have the others that run follow it."""
        standbys = [node for node in self.standbys if node.runs]
        best = max(standbys, key=_received)
        self.primary = best
        for node in standbys:
            if node is not best:
                node.set("primary_conninfo", f"{best.conninfo} application_name={node.name}")
        assert best.ask("SELECT pg_promote(true, %s)", PATIENCE)

    def mend(self) -> None:
        """All settings as they were; whoever does not follow the primary is made anew from it."""
        for id in processes(self.folder):
            _send(id, signal.SIGCONT)
        if not self.primary.runs:
            self.primary.start()
        self.primary.set("synchronous_standby_names", QUORUM)
        for node in self.standbys:
            if not self._follows(node):
                node.remove()
                node.copy(self.primary)
                node.start()
            node.set("synchronous_standby_names", QUORUM)
        self.settle()

    def _follows(self, node: Node) -> bool:
        query = "SELECT count(*) > 0 FROM pg_stat_replication WHERE application_name = %s"
        return node.runs and bool(self.primary.ask(query, node.name))

    def settle(self, count: int = 2) -> None:
        """Wait until so many standbys may acknowledge."""
        query = "SELECT count(*) = %s FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'"
        self.primary.until(query, count)

    def catch_up(self, node: Node) -> None:
        """Wait until one that follows has come to where the primary is now."""
        node.until("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", self.primary.ask("SELECT pg_current_wal_lsn()"))

    def stop(self) -> None:
        for node in self.nodes:
            node.remove()
        shutil.rmtree(self.folder, ignore_errors=True)

    def leftovers(self) -> list[str]:
        found = [self.folder.name] if self.folder.exists() else []
        return found + [trace for node in self.nodes for trace in node.leftovers()]


def _received(node: Node) -> int:
    """How much of the primary's log it has on its disk."""
    return int(node.ask("SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn"))


def _send(id: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.kill(id, number)


def _title(id: int) -> str:
    try:
        return Path(f"/proc/{id}/cmdline").read_text()
    except OSError:
        return ""  # it has ended
