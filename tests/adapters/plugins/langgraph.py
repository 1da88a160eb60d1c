"""LangGraph's own graph tests, with the adapter in the place of its savers on SQLite, and of those on PostgreSQL in the
tests of pruning.

Tests that take no checkpointer, or one in memory, are left out, and so are those that need a server of their own.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tests import conftest_checkpointer  # type: ignore[attr-defined]  # of LangGraph: it is in the working directory

from .stores import new_store

SERVED = ("postgres", "postgres_pipe", "postgres_pool")
ASKED = {
    "sync_checkpointer": {"sqlite"},
    "async_checkpointer": {"sqlite_aio"},
    "cache": {"memory"},
    "sync_store": {"in_memory"},
    "async_store": {"in_memory"},
}


@contextmanager
def _saver() -> Iterator[object]:
    from hitherto.adapters.langgraph import Saver  # after pytest has begun to rewrite assertions

    yield Saver(new_store())


@asynccontextmanager
async def _async_saver() -> AsyncIterator[object]:
    with _saver() as saver:
        yield saver


for name in ("sqlite", "postgres"):
    setattr(conftest_checkpointer, f"_checkpointer_{name}", _saver)
    setattr(conftest_checkpointer, f"_checkpointer_{name}_aio", _async_saver)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not _takes_ours(item)])
    items[:] = [item for item in items if _takes_ours(item)]


def _takes_ours(item: pytest.Item) -> bool:
    chosen = getattr(getattr(item, "callspec", None), "params", {})
    if any(chosen[fixture] not in wanted for fixture, wanted in ASKED.items() if fixture in chosen):
        return False
    makers = [value for value in chosen.values() if value in (_saver, _async_saver)]
    return bool(makers or chosen.keys() & {"sync_checkpointer", "async_checkpointer"})
