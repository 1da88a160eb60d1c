"""Makes `untagged.db.gz` and `untagged-sealed.db.gz`: stores of a time when metadata had no tags. Run once, with the
code of that time, and never again.

Each holds seven conversations; one has no metadata, one was purged, and one is on hold.
"""

import gzip
import itertools
import sys
import tempfile
from pathlib import Path

import hitherto
from hitherto import Key, Message

KEY = bytes(range(32))


def main(folder: Path) -> None:
    ticks = itertools.count(1_700_000_000_000_000, 1_000_000)
    for name, key in (("untagged", None), ("untagged-sealed", Key(KEY))):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "store.db"
            with hitherto.open(path, key=key, clock=lambda: next(ticks)) as store:
                for n in range(7):
                    metadata = {"owner": "ada" if n % 2 else "bob", "team": "red" if n < 4 else "blue"}
                    talk = store.start(title=f"t{n}", metadata=metadata if n else None, project="/p" if n < 3 else None)
                    talk.append(Message.user(f"said {n}"))
                    if n == 5:
                        talk.hold()
                gone = store.start(title="gone", metadata={"owner": "ada"})
                store.purge(gone, reason="user-requested")
            (folder / f"{name}.db.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
