"""Large files: how fast one is kept and read back, against a plain copy that is synced, and the memory it takes."""

import filecmp
import os
import random
import resource
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

from hitherto import Block, Message
from hitherto.attachment import Attachment

from ._children import once
from ._corpus import Passages
from ._sides import Ours
from ._table import Bench, Row, at_most

_MEGABYTE = 1_000_000
_PIECE = 4 * _MEGABYTE
_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes


class _Done(NamedTuple):
    """What one process did."""

    seconds: float
    before: int  # bytes of memory
    peak: int


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT


def _keep(side: Ours, path: str) -> _Done:
    talk = side.store.ensure("with a file")
    before, began = _peak(), time.perf_counter()
    talk.append(Message.user([Block.video(Attachment.from_file(path), "video/mp4")]))
    return _Done(time.perf_counter() - began, before, _peak())


def _give_back(side: Ours, path: str) -> _Done:
    talk = side.store.ensure("with a file")
    before, began = _peak(), time.perf_counter()
    content = talk.thread(attachments="lazy")[-1].blocks[0].content
    if not isinstance(content, Attachment):
        raise TypeError("a large file did not become an attachment")
    content.save(path)
    return _Done(time.perf_counter() - began, before, _peak())


def _copy(_: str, source: str, target: str) -> _Done:
    before, began = _peak(), time.perf_counter()
    shutil.copyfile(source, target)
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return _Done(time.perf_counter() - began, before, _peak())


def _write_file(path: Path, kind: str, size: int) -> None:
    """Random bytes, or text; the text comes again after a while, further apart than what is squeezed at a time."""
    text = Passages().whole.encode()[:_PIECE] if kind == "text" else b""
    chosen = random.Random(size)
    with path.open("wb") as file:
        while file.tell() < size:
            file.write((text or chosen.randbytes(_PIECE))[: size - file.tell()])
        file.flush()
        os.fsync(file.fileno())


def attachments(bench: Bench) -> list[Row]:
    rows = []
    size = bench.pick(64, 512) * _MEGABYTE
    for kind in ("random bytes", "text"):
        source = bench.folder / f"source {kind}"
        _write_file(source, kind, size)
        found: dict[str, list[_Done]] = {"keep": [], "read back": [], "copy": []}
        stored = 0.0
        for number in range(bench.pick(3, 5)):
            folder = bench.place(kind, number)
            target, copy = Path(folder, "target"), Path(folder, "copy")
            for what in bench.shuffled(("ours", "copy")):
                if what == "copy":
                    found["copy"].append(once(None, folder, _copy, str(source), str(copy)))
                    continue
                found["keep"].append(once("ours", folder, _keep, str(source)))
                found["read back"].append(once("ours", folder, _give_back, str(target)))
            if not filecmp.cmp(source, target, shallow=False):
                raise RuntimeError("a file came back as another one")
            stored = Path(folder, "hitherto.db").stat().st_size / size
            shutil.rmtree(folder)
        rows += _rows(f"{size // _MEGABYTE} MB of {kind}", size, found, stored)
        source.unlink()
    return rows


def _rows(name: str, size: int, found: dict[str, list[_Done]], stored: float) -> list[Row]:
    rows = []
    rate = {what: [size / done.seconds / _MEGABYTE for done in done_so] for what, done_so in found.items()}
    for what in ("keep", "read back"):
        values = [ours / copy for ours, copy in zip(rate[what], rate["copy"], strict=True)]
        note = f"ours {statistics.median(rate[what]):.0f} MB/s, copy {statistics.median(rate['copy']):.0f} MB/s"
        note += f"; {stored:.2f} bytes stored for each" if what == "keep" else ""
        rows.append(at_most(f"{what} {name}: MB/s / copy and sync", values, None, note))
        peaks = [done.peak / _MEGABYTE for done in found[what]]
        grew = max(done.peak - done.before for done in found[what]) / _MEGABYTE
        rows.append(at_most(f"{what} {name}: peak memory, MB", peaks, None, f"at most {grew:.0f} MB more than before"))
    return rows
