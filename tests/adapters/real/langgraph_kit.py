"""The conformance kit of LangGraph, `langgraph-checkpoint-conformance`: one test of pytest for each of its tests.

Not collected by `make test`: scripts/framework_suites.py names it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

import pytest

from hitherto.adapters.langgraph import Saver
from tests.adapters.plugins.stores import new_store

SPECS = ("put", "put_writes", "get_tuple", "list", "delete_thread", "delete_for_runs", "copy_thread", "prune")
Test = Callable[[Any], Awaitable[None]]


def _tests() -> list[Test]:
    modules = [import_module(f"langgraph.checkpoint.conformance.spec.test_{spec}") for spec in SPECS]
    return [test for module, spec in zip(modules, SPECS, strict=True) for test in _of(module, spec)]


def _of(module: object, spec: str) -> list[Test]:
    found: list[Test] = getattr(module, f"ALL_{spec.upper()}_TESTS")
    return found


@pytest.mark.parametrize("kit_test", _tests(), ids=lambda test: test.__name__)
def test_kit(kit_test: Test) -> None:
    async def run() -> None:
        async with Saver(new_store()) as saver:
            await kit_test(saver)

    asyncio.run(run())
