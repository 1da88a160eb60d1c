"""The same names, awaited: records over a store that was opened with `open_async`.

Everything is decided in `Records`; here the waiting moves out of the event loop, as it does for the store itself. Each
method is made from the one that it awaits, so that the two cannot differ.
"""

import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ..aio import AsyncStore
from ..retention import RetentionPolicy
from ._inputs import check_kind
from ._records import Records
from ._types import Record

if TYPE_CHECKING:
    from ..sanitiser import Sanitiser

P = ParamSpec("P")
T = TypeVar("T")
_Awaited = Callable[Concatenate["AsyncRecords", P], Coroutine[None, None, T]]


def _awaited(method: Callable[Concatenate[Records, P], T]) -> _Awaited[P, T]:
    @wraps(method)
    async def call(self: "AsyncRecords", /, *args: P.args, **how: P.kwargs) -> T:
        def run() -> T:
            found = method(self._records(), *args, **how)
            if isinstance(found, Record):
                found._load()  # nobody is to wait for it in the event loop
            return found

        return await self._store._threads.run(run)

    return call


class AsyncRecords:
    """Conversations as records, awaited. See `Records`. A retention is kept in the store by the first call."""

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
        """Made by the first call, because it may have to write."""
        with self._lock:
            if self._made is None:
                retention, sanitiser = self._given
                self._made = Records(self._store.sync, retention=retention, sanitiser=sanitiser)
            return self._made

    create = _awaited(Records.create)
    update = _awaited(Records.update)
    get = _awaited(Records.get)
    list = _awaited(Records.list)
    delete = _awaited(Records.delete)
    purge_all = _awaited(Records.purge_all)
    commit_conversation = _awaited(Records.commit_conversation)
    commit_snapshot = _awaited(Records.commit_snapshot)
    get_snapshot = _awaited(Records.get_snapshot)
