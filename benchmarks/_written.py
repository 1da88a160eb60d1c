"""What an append writes to the disk: bytes, and syncs. Both are counted below SQLite, so they do not depend on the
machine or on the hour."""

from collections.abc import Iterable
from typing import Final

import apsw

from ._children import once
from ._corpus import messages, turns
from ._sides import SEALED_SIDES, Ours, Raw
from ._table import Bench, Row, at_most, ratios

SIZES: Final = (10, 1_000, 10_000)
_MOST_BYTES: Final = {10: 1.4, 1_000: 1.0, 10_000: 1.0}  # against raw
_MOST_SYNCS: Final = 1.02
_COPIES: Final = 100  # short conversations are many, so that they stay short


def names(size: int) -> list[str]:
    """The conversations of this many messages that are appended to in turn."""
    return [f"short {n}" for n in range(_COPIES)] if size == SIZES[0] else ["long"]


def populate(side: Raw | Ours, size: int) -> None:
    """Make these conversations."""
    for n, name in enumerate(names(size)):
        side.append(name, messages(size, start=n * 7))


class _Counting(apsw.VFS):
    """Counts what SQLite writes and syncs, in all files of this process."""

    def __init__(self) -> None:
        super().__init__("counting", base="unix")
        self.bytes = self.syncs = 0
        apsw.set_default_vfs("counting")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # SQLite's name
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, counts: _Counting, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("unix", name, flags)
        self._counts = counts

    def xWrite(self, data: bytes, offset: int) -> None:
        self._counts.bytes += len(data)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._counts.syncs += 1
        super().xSync(flags)


def _count(folder: str, side: str, size: int, count: int) -> tuple[float, float]:
    """Bytes and syncs of a turn, over so many of them."""
    counting = _Counting()
    opened, among = SEALED_SIDES[side](folder), names(size)
    populate(opened, size)
    for n, name in enumerate(among):
        opened.append(name, list(turns(1, n)[0]))
    before = counting.bytes, counting.syncs
    for n, turn in enumerate(turns(count, 200)):
        opened.append(among[n % len(among)], list(turn))
    written = (counting.bytes - before[0]) / count, (counting.syncs - before[1]) / count
    opened.close()
    return written


def written(bench: Bench, what: str, side: str, sizes: Iterable[int] = SIZES) -> list[Row]:
    """Rows of one side beside raw."""
    rows = []
    for size in sizes:
        counts = {
            one: once(None, bench.place("written", size, one), _count, one, size, bench.pick(300, 1_000))
            for one in (side, "raw")
        }
        ours, raw = counts[side], counts["raw"]
        name = f"{what} at {size:,} messages"
        note = f"ours {ours[0] / 1e3:.1f} kB, raw {raw[0] / 1e3:.1f} kB"
        rows.append(at_most(f"{name}: bytes written", ratios([ours[0]], [raw[0]]), _MOST_BYTES[size], note))
        note = f"raw {raw[1]:.3f}"
        rows.append(at_most(f"{name}: syncs a turn (not a ratio)", [ours[1]], _MOST_SYNCS, note))
    return rows
