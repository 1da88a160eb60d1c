"""A store that people work with: messages get labels, leaves go, titles change, turns come, a few conversations are
purged. And what maintenance makes of it, while somebody reads."""

import random
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from hitherto import Conversation

from ._children import Child
from ._corpus import messages, turns
from ._messages import to_message
from ._sides import Ours

_MESSAGES = 50  # in each conversation, to begin with
_READ = "talk 0"  # which is changed like the others, and never purged
_WORK = {"label": 35, "append": 30, "delete": 20, "rename": 15}  # in a hundred changes
_PURGES = 20  # in all


class Maintained(NamedTuple):
    """What maintenance did. Bytes and seconds."""

    before: int  # of the file
    file: int
    wal: int
    copy: int
    packed: int
    seconds: float
    longest_during: float  # that a reader waited for a thread
    longest_without: float
    usual_during: float
    usual_without: float


def populate(side: Ours, conversations: int) -> None:
    """Conversations that are packed."""
    for n in range(conversations):
        side.append(f"talk {n}", messages(_MESSAGES, start=n * 7))
    side.maintain()


class _Talk:
    """A conversation, and the ids on its thread."""

    def __init__(self, handle: Conversation) -> None:
        self.handle = handle
        self.ids = [message.id for message in handle.thread()]


def change(side: Ours, count: int, seed: int) -> None:
    """So many changes, each a commit of its own."""
    chosen = random.Random(seed)
    talks = [_Talk(side.store.ensure(name)) for name in side.names()]
    purges = set(chosen.sample(range(count), min(_PURGES, len(talks) // 4)))
    kinds = chosen.choices(list(_WORK), list(_WORK.values()), k=count)
    for n, kind in enumerate(kinds):
        talk = chosen.choice(talks)
        if n in purges and talk is not talks[0]:
            side.store.purge(talk.handle, reason="user-requested")
            talks.remove(talk)
        elif kind == "label" and talk.ids:
            label = chosen.choice(("good", "bad", "later", None))
            talk.handle.label(label, message=chosen.choice(talk.ids))
        elif kind == "delete" and talk.ids:
            side.store.delete([talk.ids.pop()])
        elif kind == "rename":
            talk.handle.rename(f"A title that was changed {n} times")
        else:
            said = [to_message(message) for message in turns(1, start=n)[0]]
            talk.ids += [message.id for message in talk.handle.extend(said, on_conflict="follow")]


def _maintain(side: Ours) -> tuple[float, int]:
    began = time.perf_counter()
    done = side.store.maintain()
    took = time.perf_counter() - began
    if not done.complete:
        raise RuntimeError("maintenance left something to do")
    return took, done.packed


def _back_up(side: Ours, path: str) -> None:
    side.store.backup(path)


def _read(side: Ours, flag: str, seconds: float) -> tuple[float, float]:
    """Read a thread again and again until there is a flag, and for so long at least: the longest and the usual time."""
    times = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end or not Path(flag).exists():
        began = time.perf_counter()
        side.load(_READ)
        times.append(time.perf_counter() - began)
    return max(times), statistics.median(times)


def maintained(writer: Child, reader: Child, folder: str) -> Maintained:
    """Let one process maintain the store while another reads; then let the other read for as long in peace."""
    store, flag, copy = Path(folder, "hitherto.db"), Path(folder, "done"), Path(folder, "copy.db")
    before = store.stat().st_size
    reader(_read, folder, 0.0)  # warm: the flag is the folder, which is there
    reader.send(_read, str(flag), 0.0)
    seconds, packed = writer(_maintain)
    flag.touch()
    longest_during, usual_during = reader.receive()
    file, wal = store.stat().st_size, Path(f"{store}-wal").stat().st_size
    longest_without, usual_without = reader(_read, folder, seconds)
    writer(_back_up, str(copy))
    return Maintained(
        before,
        file,
        wal,
        copy.stat().st_size,
        packed,
        seconds,
        longest_during,
        longest_without,
        usual_during,
        usual_without,
    )
