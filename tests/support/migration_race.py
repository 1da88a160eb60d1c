"""Processes that open a store at the same moment, with the steps of this version or with further ones.

`python -m tests.support.migration_race URL COUNT HOW` says "ready", waits for a line, and lets so many processes go at
once. It ends with the number of those that failed.
"""

import os
import sys

import hitherto
from hitherto import Message
from hitherto.backends.postgres import schema
from hitherto.backends.postgres.schema import Step

COLUMN = Step("a column", ("ALTER TABLE hitherto.conversation ADD COLUMN extra bigint NOT NULL DEFAULT 7",))
INDEX = Step(
    "an index",
    ("CREATE INDEX CONCURRENTLY IF NOT EXISTS by_extra ON hitherto.conversation (workspace_id, created_at)",),
    online=True,
)
# The second statement waits for whoever holds the row of the workspaces, the first is seen by nobody until then.
HALTING = Step("halting", ("CREATE TABLE hitherto.half (workspace_id uuid)", "LOCK TABLE hitherto.workspace"))

WAYS = {"": (), "hasty": (), "later": (COLUMN, INDEX), "index": (INDEX,), "halt": (HALTING,)}


def begin(how: str) -> None:
    schema.MIGRATIONS = (*schema.MIGRATIONS, *WAYS[how])
    if how == "hasty":  # who loses a race gives up
        schema._IN_THE_WAY = ()
    if how == "halt":  # nobody is in a hurry
        schema._LOCK_SECONDS = 60


def enter(url: str, name: str) -> None:
    with hitherto.open(url, workspace="migrants", maintenance=False) as store:
        store.ensure(name).append(Message.user(name))


def main(url: str, count: str, how: str) -> int:
    begin(how)
    print("ready", flush=True)
    sys.stdin.readline()
    children = []
    for number in range(int(count)):
        if not (child := os.fork()):
            try:
                enter(url, f"migrant {number}")
            except hitherto.HithertoError as error:
                print(type(error).__name__, error, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(bool(os.waitpid(child, 0)[1]) for child in children)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
