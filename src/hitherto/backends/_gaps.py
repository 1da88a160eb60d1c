"""Gaps: what SQLite leaves behind on pages that are in use.

When a page of a table overflows, SQLite moves half of its rows to another one. `secure_delete` overwrites rows that are
deleted, not those that were moved: their bytes stay where they were, in the unused middle of the page between the list
of its rows and the rows themselves, until something else happens to be written there. So a conversation that was purged
could still be read there, on a page that now belongs to another one.

Here is what overwrites them. It writes into the file past SQLite, so it may do so only while nobody else can: with the
lock of writers, and with nothing in the WAL that anybody could move into the database meanwhile. What is overwritten is
used by nobody, so readers do not mind, and a power cut in the middle of it leaves a sound page. A commit at the end
makes every connection forget the pages that it remembers, which still have the old bytes.

A whole file takes a while, so it is done in pieces, as long as there is time; the next call goes on where the last one
ended. What is removed meanwhile needs a pass of its own. If the file has become smaller, pages were moved about in it,
and the pass begins again.

The file is opened through SQLite's own VFS: closing a descriptor of one's own would drop the locks of the process.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import apsw

from ._connections import Pool, empty_wal

_LEAVES, _INNER_INDEX = (13, 10), 2  # kinds of page that hold content of rows; inner pages of tables hold numbers alone
_READ = 256  # pages read at a time
_AT_ONCE = 2_000  # pages overwritten while writers wait
_TRIES = 5  # if others are faster
_FLAGS = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READWRITE
_Commit = Callable[[apsw.Connection], None]


class Gaps:
    """The gaps of one file, and how far the pass over them has come. For one thread at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._next = self._end = 0  # the page to go on with, and how many there were
        self._done: _Commit = lambda _: None

    def close(self, touch: _Commit, begin: Callable[[], _Commit], deadline: float | None = None) -> bool:
        """Overwrite them all, or go on with it. `begin` is called as a pass begins, and gives what is to be committed
        at its end; `touch` writes something that changes nothing. False if others, or the time, did not allow all."""
        file = apsw.VFSFile(self._pool.vfs or "", self._pool.path, [_FLAGS, 0])
        try:
            connection = self._pool.connect()  # a new one, which remembers no page
            try:
                return self._pass(file, connection, touch, begin, deadline)
            finally:
                self._pool.drop(connection)
        finally:
            file.xClose()

    def _pass(
        self,
        file: apsw.VFSFile,
        connection: apsw.Connection,
        touch: _Commit,
        begin: Callable[[], _Commit],
        deadline: float | None,
    ) -> bool:
        size = int(connection.pragma("page_size"))
        while True:
            end = file.xFileSize() // size
            if self._next == 0 or end < self._end:
                self._next, self._done = 0, begin()
            self._end = end
            found, after = _found(file, size, self._next, end, deadline)
            last = after == end
            if (found or last) and not self._overwritten(connection, file, size, found, self._done if last else touch):
                return False
            self._next = 0 if last else after
            if last or (deadline is not None and time.monotonic() > deadline):
                return last

    def _overwritten(
        self, connection: apsw.Connection, file: apsw.VFSFile, size: int, pages: Sequence[int], commit: _Commit
    ) -> bool:
        """Overwrite the gaps of these pages, as they are now. False if others do not let us."""
        for _ in range(_TRIES):
            if not empty_wal(connection, self._pool.timeout_seconds):
                return False
            connection.execute("BEGIN IMMEDIATE")
            try:
                if not self._pool.pending():  # nobody was faster, and nobody can be from now on
                    for page in pages:
                        _overwrite(file, size, page)
                    if pages:
                        file.xSync(apsw.SQLITE_SYNC_FULL)
                    commit(connection)
                    connection.execute("COMMIT")
                    empty_wal(connection, self._pool.timeout_seconds)
                    return True
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        return False


def _found(file: apsw.VFSFile, size: int, start: int, end: int, deadline: float | None) -> tuple[list[int], int]:
    """Pages that have something in their gaps, from one on, and up to which we looked."""
    numbers: list[int] = []
    while start < end:
        count = min(_READ, end - start)
        data = file.xRead(count * size, start * size)
        numbers += [start + n for n, (first, last) in _gaps(data, size, start) if data[first:last].strip(b"\0")]
        start += count
        if len(numbers) >= _AT_ONCE or (deadline is not None and time.monotonic() > deadline):
            break
    return numbers, start


def _gaps(data: bytes, size: int, first: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """The gap of each page in these bytes, as far as it has one that may hold content."""
    maps = size // 5 + 1  # pages that say what other pages are for come at this distance, from the second on
    for n in range(len(data) // size):
        at = n * size
        header = at + (100 if first + n == 0 else 0)
        kind = data[header]
        if kind in _LEAVES:
            start = header + 8
        elif kind == _INNER_INDEX and (first + n - 1) % maps:
            start = header + 12
        else:
            continue
        start += 2 * int.from_bytes(data[header + 3 : header + 5])
        stop = at + (int.from_bytes(data[header + 5 : header + 7]) or 65_536)
        if start < stop <= at + size:
            yield n, (start, stop)


def _overwrite(file: apsw.VFSFile, size: int, page: int) -> None:
    if (page + 1) * size > file.xFileSize():
        return  # it was given back meanwhile
    for _, (start, stop) in _gaps(file.xRead(size, page * size), size, page):
        file.xWrite(bytes(stop - start), page * size + start)
