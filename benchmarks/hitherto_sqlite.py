"""hitherto: SQLite (apsw), WAL, synchronous=FULL, one tree of messages."""

import os
import sys
from pathlib import Path

from bench.base import Contestant as Base

from hitherto import Conversation, Message, Saved, Store
from hitherto import open as open_store
from hitherto.backends.sqlite import SqliteBackend  # noqa: F401  # loaded here, so that `open` is timed without imports

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the harness loads this file by its path
from benchmarks._messages import Plain, to_dict, to_message

CHUNK = 1000  # messages in one write of a bulk load: one write carries at most 10 MB


class Contestant(Base):
    group = "ours"
    fork_kind = "native"
    list_kind = "native"
    clone_db = "hitherto.db"
    # Large stores for the listing. Rows of `conversation` are cloned, without messages: the number of a message says
    # where in the tree it is, so its rows cannot be cloned by SQL, and a listing does not read them. So each clone is
    # a valid, empty conversation; only its description still has the title and the key of the original.
    clone = {  # noqa: RUF012  # the harness's own interface
        "conversation": (
            "substr(CAST(key AS TEXT), 14)",  # the key is stored as `conversation=conv000001`
            {
                "id": "randomblob(16)",
                "key": "CAST(CAST(key AS TEXT) || :k AS BLOB)",
                "head": "NULL",
                "tips": "x'90'",  # an empty list
                "next_seq": "0",
                "count": "0",
                "size": "0",
                "created_at": "created_at + :k * 1000000000",
                "active_at": "active_at + :k * 1000000000",
                "shelf": "active_at + :k * 1000000000",  # by which they are listed; `c100`, made last, stands in front
            },
        )
    }

    def open(self, path: str) -> None:
        self._store: Store = open_store(os.path.join(path, "hitherto.db"))
        self._handles: dict[str, Conversation] = {}
        self._forks: dict[str, Conversation] = {}
        self._ids: dict[str, list[str]] = {}

    def _handle(self, conv_id: str) -> Conversation:
        handle = self._handles.get(conv_id)
        if handle is None:
            handle = self._handles[conv_id] = self._store.ensure(conv_id)
        return handle

    def append_turn(self, conv_id: str, user_msg: Plain, assistant_msg: Plain) -> None:
        # The harness wants all turns of all processes on one thread, so writers go below the head.
        self._handle(conv_id).extend([to_message(user_msg), to_message(assistant_msg)], on_conflict="follow")

    def bulk_load(self, conv_id: str, msgs: list[Plain]) -> None:
        handle = self._handle(conv_id)
        for start in range(0, len(msgs), CHUNK):
            handle.extend([to_message(m) for m in msgs[start : start + CHUNK]])

    def load_native(self, conv_id: str) -> list[Saved]:
        fork = self._forks.get(conv_id)
        return self._store.ensure(conv_id).thread() if fork is None else fork.thread()

    def to_dicts(self, native: list[Saved]) -> list[Plain]:
        return [to_dict(message) for message in native]

    def list_recent(self, limit: int) -> list[str]:
        return [found.id for found in self._store.conversations(limit=limit).items]

    def fork(self, conv_id: str, at_index: int) -> str:
        """A fork is free until something is said on it, so one message is saved: an event, which threads leave out.
        Off the main flow, so that the conversation itself goes on where it was."""
        ids = self._ids.get(conv_id)
        if ids is None:
            ids = self._ids[conv_id] = [m.id for m in self._store.ensure(conv_id).thread()]
        fork = self._handle(conv_id).fork(ids[at_index - 1], main=False)
        fork.append(_FORKED)
        name = f"{conv_id}-fork-{at_index}"
        self._forks[name] = fork
        return name

    def close(self) -> None:
        """Closing packs runs that are full, for a quarter of a second at most. The harness has no hook for
        maintenance, so sizes and resumes are what people have who never call `maintain`."""
        self._store.close()


_FORKED = Message("event", Message.user("forked").blocks)
