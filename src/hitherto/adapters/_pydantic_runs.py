"""Runs of pydantic-ai on their way: a capability that keeps each answer before its tools run.

The framework hands a conversation to its store when a run is over. Until then the messages of the run lie beside the
tree, in items of the conversation: the messages up to the last answer in one, each result of a tool in one of its own.
The commit that saves the run removes them.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Struct

from .._system.task_threads import shared_threads
from ..conversation import Conversation
from ..dialects._framework_names import key_of
from ..items import Batch
from ..store import Store
from ._opening import import_framework

_RUNS: Final = "pydantic-ai/run"
Json = dict[str, object]


class _Run(Struct):
    """A run as far as it has come."""

    run_id: str
    revision: str | None  # of the conversation that it goes on from
    messages: list[Json]


class RunJournal:
    """The runs of one conversation that are on their way, or were interrupted."""

    def __init__(self, store: Store, conversation_id: str, find: Callable[[str], Conversation | None]) -> None:
        self._store, self._id, self._find = store, conversation_id, find

    def keep(self, run_id: str, messages: list[Json]) -> None:
        """Keep the messages of a run, in the place of those that were kept before."""
        talk = self._find(self._id) or self._store.ensure(self._id, metadata={"framework": "pydantic-ai"})
        record = talk.items.get(key_of("pydantic-ai/record", self._id))
        revision = None if record is None else msgspec.json.decode(record.value)["revision"]
        name = self._name(run_id)
        old = [item.name for item in talk.items.scan(f"{name}/")]
        with talk.batch() as batch:
            batch.items[name] = msgspec.json.encode(_Run(run_id, revision, messages))
            for one in old:  # the messages have these results by now
                batch.items.delete(one, missing_ok=True)

    def keep_result(self, run_id: str, message: Json) -> None:
        """Keep the result of a tool, as a message of its own."""
        talk = self._find(self._id)
        if talk is not None:
            talk.items[f"{self._name(run_id)}/result/{uuid4().hex}"] = msgspec.json.encode(message)

    def read(self, talk: Conversation, revision: str | None) -> list[Json]:
        """Return the messages of the runs that go on from this revision."""
        found: dict[str, _Run] = {}
        for item in talk.items.scan(self._name("")):
            name, _, result = item.name.partition("/result/")
            if result and name in found:
                found[name].messages.append(msgspec.json.decode(item.value))
            elif not result:
                found[name] = msgspec.json.decode(item.value, type=_Run)
        return [message for run in found.values() if run.revision == revision for message in run.messages]

    def remove(self, talk: Conversation, batch: Batch, runs: Iterable[str | None] | None = None) -> None:
        """Remove these runs, or all of them, with a batch."""
        names = None if runs is None else [self._name(run) for run in runs if run]
        for item in talk.items.scan(self._name("")):
            if names is None or item.name.partition("/result/")[0] in names:
                batch.items.delete(item.name, missing_ok=True)

    def _name(self, run_id: str) -> str:
        return key_of(key_of(_RUNS, self._id), run_id)


@cache
def _capability_class() -> Any:
    """The class of the capability. Its base is the framework's, so it is made when it is wanted."""
    capabilities: Any = import_framework("pydantic_ai.capabilities", "pydantic-ai-slim", "pydantic-ai", ">=2.66,<3")
    messages: Any = import_framework("pydantic_ai.messages", "pydantic-ai-slim", "pydantic-ai", ">=2.66,<3")

    def as_json(*found: Any) -> list[Json]:
        return msgspec.json.decode(messages.ModelMessagesTypeAdapter.dump_json(list(found)))

    class Keeping(capabilities.AbstractCapability):
        """Keeps an answer that calls tools when it is there, and each result of a tool."""

        def __init__(self, journal_of: Callable[[str], RunJournal]) -> None:
            self.journal_of = journal_of

        async def after_model_request(self, ctx: Any, *, request_context: object, response: Any) -> Any:  # noqa: ARG002  # the framework's
            if ctx.conversation_id and ctx.run_id and any(part.part_kind == "tool-call" for part in response.parts):
                said = as_json(*(one for one in ctx.messages if one.run_id == ctx.run_id), response)
                await shared_threads().run(self.journal_of(ctx.conversation_id).keep, ctx.run_id, said)
            return response

        async def after_tool_execute(self, ctx: Any, *, call: Any, tool_def: object, args: object, result: Any) -> Any:  # noqa: ARG002  # as above
            if ctx.conversation_id and ctx.run_id:
                content = result.return_value if isinstance(result, messages.ToolReturn) else result
                part = messages.ToolReturnPart(call.tool_name, content, call.tool_call_id)
                said = as_json(messages.ModelRequest([part], run_id=ctx.run_id, conversation_id=ctx.conversation_id))
                await shared_threads().run(self.journal_of(ctx.conversation_id).keep_result, ctx.run_id, said[0])
            return result

    return Keeping


def keeping(journal_of: Callable[[str], RunJournal]) -> Any:
    """Return the capability for an agent, whatever conversations it runs."""
    return _capability_class()(journal_of)
