"""A conversation store for pydantic-ai: `await Conversations(store).save(result)`.

`_pydantic_trees` says where its conversations, forks and entries lie.
"""

from collections.abc import Callable, Sequence
from typing import Any

from .._system.task_threads import shared_threads
from ..aio import AsyncStore
from ..store import Store
from ._opening import Location, open_any
from ._pydantic_runs import keeping
from ._pydantic_trees import ConversationTrees, Entry, EntryNotFound, Record, conversations, decode, messages

__all__ = ["Conversations", "EntryNotFound"]


class Conversations(conversations.ConversationStore):
    """The conversations of pydantic-ai, kept in hitherto.

    `delete` also erases the entries that no other conversation uses, out of every file of the store.
    """

    def __init__(self, store: Store | AsyncStore | Location) -> None:
        self.store = open_any(store)
        self._trees = ConversationTrees(self.store)

    def __repr__(self) -> str:
        return f"<Conversations in {self.store!r}>"

    # -- the primitives of the framework

    async def read_record(self, conversation_id: str) -> Record | None:
        """Return the record of a conversation, or None."""
        return await shared_threads().run(self._trees.read_record, conversation_id)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[Record]:
        """Return the records, the one that was saved last first."""
        return await shared_threads().run(self._trees.read_records, scope, limit)

    async def write_record(
        self, record: Record, *, new_entries: Sequence[Entry] = (), expected_revision: str | None
    ) -> None:
        """Write a record and its new entries in one commit, or raise `ConversationConflict`."""
        await shared_threads().run(self._trees.write, record, list(new_entries), expected_revision)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a record, and the entries that no record uses any more."""
        await shared_threads().run(self._trees.delete, conversation_id, expected_revision)

    async def read_entry(self, entry_id: str) -> Entry:
        """Return an entry. `EntryNotFound` if there is none."""
        return (await shared_threads().run(self._trees.read_history, entry_id, 1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[Entry]:
        """Return the entries up to this one; with a limit, the last of them. It is one query."""
        if head_id is None or limit == 0:
            return []
        return await shared_threads().run(self._trees.read_history, head_id, limit)

    # -- runs that did not come to their end

    async def load(self, conversation_id: str, *, limit: int | None = None, scope: str | None = None) -> Any:
        """Load a conversation, or None. If a run of it was interrupted, what `keeping` kept of that run stands at the
        end, with its open calls closed, and is saved with the next run. `resume` leaves them open."""
        return await self._load(conversation_id, limit, scope, messages.repair_messages)

    async def resume(self, conversation_id: str, *, limit: int | None = None, scope: str | None = None) -> Any:
        """Load a conversation whose last run was interrupted, to go on with it: `agent.run(conversation=…)` without a
        prompt runs the tools that were called, and does not ask the model again for what it has said."""
        return await self._load(conversation_id, limit, scope, list)

    async def _load(
        self, conversation_id: str, limit: int | None, scope: str | None, close: Callable[[list[Any]], list[Any]]
    ) -> Any:
        loaded = await super().load(conversation_id, limit=limit, scope=scope)
        if loaded is None and await self.read_record(conversation_id) is not None:
            return None  # of another scope
        revision = None if loaded is None else loaded.revision
        found = await shared_threads().run(self._trees.unfinished, conversation_id, revision)
        if found and loaded is None:
            loaded = conversations.Conversation(conversation_id=conversation_id)
        if found:
            loaded.messages.extend(close(decode(found)))
        return loaded

    @property
    def keeping(self) -> Any:
        """A capability for `Agent(capabilities=[…])`, which keeps each answer of the model before its tools run."""
        return keeping(self._trees.journal_of)
