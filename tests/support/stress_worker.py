"""A process that does everything at once to conversations that others are at, too.

`python -m tests.support.stress_worker URL WORKSPACE SEED SECONDS` ends with 0 if nothing went wrong that must not.
"""

import random
import sys
import time

import hitherto
from hitherto import Block, Message, Store
from hitherto.errors import AlreadyExists, Conflict, HasChildren, NotFound

TALKS = tuple(f"talk {number}" for number in range(4))


def once(store: Store, chance: random.Random) -> None:
    """Something, to one that all others know."""
    name = chance.choice(TALKS)
    talk = store.ensure(name)
    what = chance.randrange(10)
    if what < 4:
        talk.append(Message.user(f"{chance.random()}"), on_conflict=chance.choice(("follow", "branch")))
    elif what == 4:
        talk.extend([Message.user("one of many")] * chance.randrange(1, 40), on_conflict="follow")
    elif what == 5:
        talk.append(Message.user([Block.image(bytes([chance.randrange(3)]) * 70_000, "image/png")]))
    elif what == 6:
        messages = list(talk.thread())
        if messages:
            store.delete([chance.choice(messages[len(messages) // 2 :]).id], recursive=True)
    elif what == 7:
        store.purge(talk, reason="user-requested")
    elif what == 8:
        store.maintain(0.05)
    elif talk.head is not None:
        talk.label(chance.choice((None, "marked")))


def main(url: str, workspace: str, seed: str, seconds: str) -> int:
    chance = random.Random(int(seed))
    count = 0
    with hitherto.open(url, workspace=workspace) as store:
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            try:
                once(store, chance)
                count += 1
            except (AlreadyExists, Conflict, HasChildren, NotFound):
                continue  # somebody was faster
    print(count, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
