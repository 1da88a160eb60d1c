"""Async records: records over a store that was opened with `open_async`.

`Records` makes all decisions; here its methods run in a thread, outside the event loop, as those of the store do. A
decorator makes each async method from the sync one, so that the two cannot differ.
"""

import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..aio import AsyncStore
from ..retention import RetentionPolicy
from ._inputs import check_kind
from ._records import Records
from ._types import Record, load_contents

if TYPE_CHECKING:
    from ..sanitiser import Sanitiser

P = ParamSpec("P")
T = TypeVar("T")
_AsyncMethod = Callable[Concatenate["AsyncRecords", P], Coroutine[None, None, T]]


def _make_async(method: Callable[Concatenate[Records, P], T]) -> _AsyncMethod[P, T]:
    @wraps(method)
    async def call(self: "AsyncRecords", /, *args: P.args, **how: P.kwargs) -> T:
        def run() -> T:
            found = method(self._records(), *args, **how)
            if isinstance(found, Record):
                load_contents(found)  # here, so that the event loop does not wait for it
            return found

        return await self._store.threads.run(run)

    return call


class AsyncRecords:
    """Async `Records`. The first call writes a retention to the store."""

    def __init__(
        self,
        store: AsyncStore,
        *,
        retention: RetentionPolicy | None = None,
        sanitiser: "Sanitiser | None" = None,
    ) -> None:
        check_kind(store, AsyncStore, "Records takes what hitherto.open gives")
        self._store, self._lock = store, threading.Lock()
        self._given = retention, sanitiser
        self._made: Records | None = None

    def _records(self) -> Records:
        """The sync records. The first call creates them, because that may write."""
        with self._lock:
            if self._made is None:
                retention, sanitiser = self._given
                self._made = Records(self._store.sync, retention=retention, sanitiser=sanitiser)
            return self._made

    create = _make_async(Records.create)
    update = _make_async(Records.update)
    get = _make_async(Records.get)
    list = _make_async(Records.list)
    delete = _make_async(Records.delete)
    purge_all = _make_async(Records.purge_all)
    commit_conversation = _make_async(Records.commit_conversation)
    commit_snapshot = _make_async(Records.commit_snapshot)
    get_snapshot = _make_async(Records.get_snapshot)
