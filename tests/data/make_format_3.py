"""Makes `format-3.db.gz`, the kept file of format 3: run once, when the format is released, and never again.

It holds what format 2 does; and one conversation was purged from it.
"""

import gzip
import itertools
import sys
import tempfile
from pathlib import Path

import hitherto
from hitherto import Block, Message

from .make_format_1 import talk_about


def main(target: Path) -> None:
    ticks = itertools.count(1_700_000_000_000_000, 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with hitherto.open(path, clock=lambda: next(ticks)) as store:
            large = store.start(title="Large", id="00000000-0000-4000-8000-000000000002")
            image = Block.image(bytes(range(256)) * 1200, "image/png")
            large.append(Message.user([Block.text("see"), image], raw={"data": ["ä" * 70_000]}))
            large.append(Message.assistant("I see."))
            talk_about(store)
            store.maintain()
            large.append(Message.user("after packing"))
            gone = store.start(title="Gone")
            gone.append(Message.user("purged"))
            store.purge(gone, reason="user-requested")
        target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
