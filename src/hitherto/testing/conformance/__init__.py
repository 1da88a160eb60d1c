"""The contract as a suite: every backend passes it, bare and under the store.

To join, write a fixture that makes a fresh backend and subclass both classes:

    class TestMine(BackendContract, StoreContract):
        @pytest.fixture
        def backend(self, tmp_path):
            backend = MyBackend(tmp_path)
            yield backend
            backend.close()

`BackendContract` speaks the protocol: rows in, rows out, compare and swap. A backend that lets writers queue
(`info.can_queue`) joins `QueueContract` as well. `StoreContract` speaks the public API, and runs over each backend four
times: plain and with a codec that checks places, calm and through a wrapper that returns `Stale` and `CommitUnknown` at
random. Both are made of parts, one module per group of verbs.
"""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from ...backend import Backend
from ...keys import Key
from ...store import Store
from ..toys import Contrary
from .appending import AppendContract
from .attaching import AttachingContract
from .bodies import AttachmentContract, PackContract
from .committing import CommitContract
from .deleting import DeleteContract, DescribeContract
from .erasing import EraseContract
from .finding import FindContract
from .packing import PackingContract
from .queueing import QueueContract
from .remembering import LedgerContract
from .rewriting import PartialContract, ThreadContract
from .rows import (
    A,
    B,
    C,
    conversation_row,
    create,
    flip_bit,
    message_row,
    never,
    pack_row,
    rebase_from,
    token,
    update,
    way,
)
from .state import StateContract
from .stores import (
    Changing,
    fill,
    grown,
    id_bytes,
    interrupt_call,
    interrupt_commit,
    noise,
    pack_all,
    row_of,
    texts,
    visible,
)
from .upkeep import FeedContract, UpkeepContract

__all__ = [
    "A",
    "B",
    "BackendContract",
    "C",
    "Changing",
    "QueueContract",
    "StoreContract",
    "conversation_row",
    "create",
    "fill",
    "flip_bit",
    "grown",
    "id_bytes",
    "interrupt_call",
    "interrupt_commit",
    "message_row",
    "never",
    "noise",
    "pack_all",
    "pack_row",
    "rebase_from",
    "row_of",
    "texts",
    "token",
    "update",
    "visible",
    "way",
]


class BackendContract(CommitContract, PackContract, AttachmentContract, FeedContract, UpkeepContract):
    """Rows in, rows out. See `hitherto.backend` for the words."""


class StoreContract(
    AppendContract,
    ThreadContract,
    PartialContract,
    FindContract,
    DeleteContract,
    DescribeContract,
    EraseContract,
    LedgerContract,
    PackingContract,
    AttachingContract,
    StateContract,
):
    """The public API over a backend, plain and sealed, calm and contrary."""

    @pytest.fixture(params=["plain", "sealed", "plain-contrary", "sealed-contrary"])
    def open_store(self, backend: Backend, request: pytest.FixtureRequest) -> Callable[[], Store]:
        """Opens the store again and again over the same backend, with a clock that ticks."""
        key = Key.generate() if "sealed" in request.param else None
        used: Backend = Contrary(backend, seed=7) if "contrary" in request.param else backend
        ticks = count(1_700_000_000_000_000, 1000)
        return lambda: Store(used, key=key, clock=lambda: next(ticks))

    @pytest.fixture
    def store(self, open_store: Callable[[], Store]) -> Iterator[Store]:
        store = open_store()
        yield store
        if not getattr(store, "damaged_on_purpose", False):
            assert store.verify().problems == ()
