"""LangGraph's own tests that make an `InMemorySaver` by themselves, with the adapter in its place.

They are the tests of delta channels, of time travel and of subgraphs that are kept. Those that look into the saver's
own dictionaries cannot pass.
"""

import os
from typing import Any

import pytest

from hitherto.adapters.langgraph import Saver

from .stores import new_store

os.environ["NO_DOCKER"] = "true"


class InMemorySaver(Saver):
    """Our saver with the arguments of LangGraph's saver in memory."""

    def __init__(self, *, serde: Any = None, factory: Any = None) -> None:
        super().__init__(new_store(), serde=serde)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        for name in ("InMemorySaver", "MemorySaver"):
            if hasattr(module, name):
                setattr(module, name, InMemorySaver)
