"""SQLite and memory cannot be told apart through the protocol (D17)."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from hitherto.backend import Backend, Batch, Outcome
from hitherto.backends.memory import MemoryBackend
from hitherto.backends.sqlite import SqliteBackend
from hitherto.testing.machine import BackendMachine

from ..support.memory import in_memory


class SqliteMachine(BackendMachine):
    def make(self) -> Backend:
        self.folder = tempfile.TemporaryDirectory(dir=in_memory())
        return SqliteBackend(Path(self.folder.name) / "store.db")

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "folder"):
            self.folder.cleanup()


class ForgetfulBackend(MemoryBackend):
    """Loses the third batch that it should have kept."""

    kept = 0

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.kept += 1
        return super().commit(batches) if self.kept != 3 else super().commit([])


class ForgetfulMachine(BackendMachine):
    def make(self) -> Backend:
        return ForgetfulBackend()


def _settings(examples: int, *phases: Phase) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=30, deadline=None, database=None, phases=phases or tuple(Phase)
    )


def test_sqlite_and_memory_give_the_same_answers() -> None:
    run_state_machine_as_test(SqliteMachine, settings=_settings(60))


def test_the_machine_notices_a_backend_that_forgets() -> None:
    """The control: the same machine fails where one commit is dropped. Nobody wants to see the least such case."""
    with pytest.raises((AssertionError, ExceptionGroup, ValueError)):
        run_state_machine_as_test(ForgetfulMachine, settings=_settings(60, Phase.generate))
