"""The backend in one SQLite file, through apsw.

Why it is laid out as it is, each by measurement (`make bench`):

- A message's rowid is its number (with the workspace in the high bits). Numbers come in runs along a branch, so
  reading a path is one range read per run, and finding a message by its id needs no index. The only index that
  every message enters is (conversation, seq).
- Listings are by last activity, but an index that every append rewrites costs a page a turn. So the index is over
  `shelf`, which is `active_at` for all conversations of a kind but the newest. The newest has a shelf above all
  others, and its appends leave the index alone until another conversation becomes the newest.
- WAL with `synchronous=FULL`: a commit returns after its frames are on the disk. `NORMAL` loses acknowledged
  messages in a power cut; the tests show it on a simulated disk.
- `BEGIN IMMEDIATE` and a busy handler that sleeps a random fraction of a millisecond or two: writers of several
  processes take turns instead of starving each other.
- A pack is a row of its own, found by the first number of its run. Packing deletes the messages and inserts them
  again without bodies, because SQLite joins pages that deleting has emptied, and not those that updating has.
- The feed of changes costs an append nothing (`feed`).
- `secure_delete` overwrites what is deleted; `auto_vacuum=INCREMENTAL` lets maintenance give pages back (it can only be
  chosen when the file is made).

apsw runs statements lazily: `execute("PRAGMA a; PRAGMA b")` stops at the first row. So it is one statement per
call, and a test reads every pragma back.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence

import apsw

from ...backend import DONE, Batch, Changes, Disk, Info, Outcome, removes
from ...errors import CommitUnknown, StorageError
from ...textindex import TextIndex
from .attachments import remove_attachments, stage_chunks
from .backup_and_check import find_problems, write_backup
from .connections import Pool, transaction
from .disk_space import OFTEN, Room, size_of
from .erasure import Erasure
from .feed import read_changes
from .files import free_bytes, map_error
from .opening import (
    check_current,
    ensure_workspace,
    find_workspace,
    migrate,
    prepare_reader,
    prepare_writer,
    workspaces,
)
from .reading import Reader
from .rows import fetch_all
from .writing import Writer

__all__ = ["SqliteBackend", "workspaces"]

_MOST_WORKSPACES = 1 << 16
_VACUUM = 256  # pages given back in one transaction
_REBUILD_SECONDS = 0.5  # the least time for a rebuild of a large store; then the process may fork


class SqliteBackend(Reader):
    """One workspace of one SQLite file."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        workspace: str = "default",
        vfs: str | None = None,
        timeout_seconds: float = 30.0,
        read_only: bool = False,
        create: bool = True,
        identity: bytes | None = None,
    ) -> None:
        """Open the file, migrate it, and find or create the workspace.

        With `read_only` nothing is created and no byte is written: a missing file or workspace is an error. Without
        `create` it is an error too. A new workspace gets this `identity`, unless another one in the file has it."""
        prepare = prepare_reader if read_only else prepare_writer
        pool = Pool(path, prepare, vfs=vfs, timeout_seconds=timeout_seconds, read_only=read_only, create=create)
        self._path = pool.path
        self._room = Room(self._path, timeout_seconds)
        pool.make_room = self._room.ballast.give_for_opening
        self._erasure = Erasure(pool)
        self._scrubbing = threading.Lock()  # one scrub at a time
        with pool.mapping_errors():
            first = pool.connect()
            try:
                if read_only:
                    check_current(first)
                else:
                    migrate(first, timeout_seconds)
                known = read_only or not create
                found = find_workspace(first, workspace) if known else ensure_workspace(first, workspace, identity)
                place, id = found
                if place > _MOST_WORKSPACES:
                    hint = "put workspaces into files of their own"
                    raise StorageError(f"{self._path} has too many workspaces", hint=hint)
            except BaseException:
                pool.drop(first)
                raise
            pool.give_back(first)
        super().__init__(pool, place)
        self._writer = Writer(place, self._base)
        self.info = Info(
            name="sqlite",
            workspace=id,
            location=self._path,
            durable=True,
            can_backup=True,
            workspace_name=workspace,
        )

    def close(self, *, untouched: bool = False) -> None:
        self._pool.close(untouched=untouched)
        last = not os.path.exists(f"{self._path}-wal")  # SQLite removes the WAL with the last connection of any process
        if last and not untouched and not self._pool.read_only:
            self._room.ballast.fold()

    # -- writing

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        if not batches:
            return []  # every commit that a reader can see is synced already
        with self._connection() as connection:
            weight = 0
            for batch in batches:
                for change in batch.changes:
                    for m in change.add:
                        weight += len(m.body or b"")
            if weight > OFTEN or self._room.is_outgrown:
                self._room.expect(connection, weight)
            try:
                outcomes = self._transact(connection, batches)
            except (apsw.Error, CommitUnknown) as error:
                if not self._room.is_about(error, connection):
                    raise
                if all(map(removes, batches)):
                    return self._room.run_with_ballast(
                        connection, lambda begun: self._transact(connection, batches, begun)
                    )
                if not self._room.gain_room(connection):
                    raise
                outcomes = self._transact(connection, batches)
            self._room.note_write(connection, weight)
            return outcomes

    def _transact(
        self, connection: apsw.Connection, batches: Sequence[Batch], begun: Callable[[], None] | None = None
    ) -> list[Outcome]:
        try:
            connection.execute("BEGIN IMMEDIATE")
            if begun is not None:
                begun()
            outcomes = [self._writer.commit_one(connection, batch) for batch in batches]
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        try:
            connection.execute("COMMIT" if DONE in outcomes else "ROLLBACK")
        except apsw.Error as error:
            reason = map_error(error, self._path, connection)
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise CommitUnknown(f"the commit was interrupted: {reason}", reason=reason) from error
        return outcomes

    def stage(
        self, conversation: bytes, attachment: bytes, start: int, chunks: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        key = (self._workspace, conversation, attachment)
        weight = sum(map(len, chunks))
        with self._connection() as connection:
            self._room.expect(connection, weight)
            try:
                stage_chunks(connection, key, start, chunks, last=last, at=at)
            except apsw.Error as error:
                if not self._room.is_about(error, connection) or not self._room.gain_room(connection):
                    raise
                stage_chunks(connection, key, start, chunks, last=last, at=at)
            self._room.note_write(connection, weight)

    def unstage(self, conversation: bytes, names: Sequence[bytes]) -> None:
        query = (
            "SELECT place FROM attachment a WHERE workspace = ? AND conversation = ? AND name = ? "
            "AND NOT EXISTS (SELECT 1 FROM reference r WHERE r.attachment = a.place)"
        )
        with self._connection() as connection:

            def work(begun: Callable[[], None]) -> int:
                with transaction(connection):
                    begun()
                    mine = (self._workspace, conversation)
                    return sum(remove_attachments(connection, query, (*mine, name)) for name in names)

            self._room.run_removal(connection, work)

    def collect(self, before: int) -> int:
        query = (
            "SELECT place FROM attachment a WHERE workspace = ? AND staged_at < ? "
            "AND NOT EXISTS (SELECT 1 FROM reference r WHERE r.attachment = a.place)"
        )
        values = (self._workspace, before)
        with self._connection() as connection:
            if not fetch_all(connection, query, values):
                return 0

            def work(begun: Callable[[], None]) -> int:
                with transaction(connection):
                    begun()
                    return remove_attachments(connection, query, values)

            return self._room.run_removal(connection, work)

    # -- care

    def changes(self, since: bytes | None) -> Changes:
        if self._pool.read_only:  # it can begin no epoch: the caller looks at everything
            return Changes(os.urandom(16), True, [], [])
        with self._connection() as connection:
            return read_changes(connection, self._workspace, since)

    def backup(self, path: str) -> None:
        write_backup(self._pool, path)

    def check(self) -> list[str]:
        return find_problems(self._pool)

    def text_index(self, *, create: bool) -> TextIndex | None:
        """Open the text index in a file of its own.

        The index is large and can be rebuilt, and feeding it must not delay a writer of the store."""
        path = f"{self._path}-search"
        if self._pool.read_only or (not create and not os.path.lexists(path)):
            return None
        from .fts import FtsIndex  # noqa: PLC0415  # only those who search need it

        timeout = self._pool.timeout_seconds
        room = self._room.ballast.give_up
        index = FtsIndex(path, self.info.workspace, vfs=self._pool.vfs, timeout_seconds=timeout, make_room=room)
        with self._connection() as connection:
            mine = {id for (id,) in fetch_all(connection, "SELECT id FROM workspace")}
        index.keep_only(mine)
        return index

    def maintain(self, seconds: float) -> bool:
        """Return free pages to the disk, a few per transaction so that no writer waits long for the lock.

        At the end the WAL is checkpointed and truncated, unless a reader holds it."""
        deadline = time.monotonic() + seconds
        with self._connection() as connection:
            free = connection.pragma("freelist_count")
            while free > 0:
                try:
                    with transaction(connection):
                        fetch_all(connection, f"PRAGMA incremental_vacuum({_VACUUM})")
                except apsw.FullError:
                    return self._room.shrink(connection)
                before, free = free, connection.pragma("freelist_count")
                if free >= before:  # another program rewrote the file without auto_vacuum
                    break
                if free > 0 and time.monotonic() > deadline:
                    return False
        with self._scrubbing:
            with self._connection() as connection:
                self._room.scrub(connection)  # truncates the WAL, unless a reader is active
            return self._erasure.advance(max(deadline, time.monotonic() + _REBUILD_SECONDS))

    def scrub(self) -> bool:
        with self._scrubbing:
            with self._connection() as connection:
                scrubbed = self._room.scrub(connection)
            return scrubbed and self._erasure.advance()

    def is_scrubbed(self) -> bool:
        return self._erasure.is_done()

    def disk(self) -> Disk | None:
        found = os.statvfs(os.path.dirname(self._path))
        return Disk(free_bytes(self._path), found.f_blocks * found.f_frsize, self._room.ballast.size > 0)

    def size(self) -> int:
        return sum(size_of(f"{self._path}{suffix}") for suffix in ("", "-wal"))

    def pragmas(self, names: Sequence[str]) -> dict[str, object]:
        """Return the values of these pragmas."""
        with self._connection() as connection:
            return {name: connection.pragma(name) for name in names}
