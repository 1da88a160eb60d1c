"""A history provider for Microsoft's Agent Framework: `Agent(…, context_providers=[History(store)])`.

The history of a session is a conversation, its messages are messages. The framework reads them before a run and adds to
them after it; with `require_per_service_call_history_persistence=True` it adds to them after each call of the model, so
that an answer is kept before the tools run that it calls.

The framework may give what it has given before, when it runs again from a whole transcript. Messages that repeat the
end of the history are passed over, and the rest is added in one commit.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .._system.task_threads import shared_threads
from ..aio import AsyncStore
from ..dialects._framework_names import escape, key_of
from ..dialects._kept_objects import first_words
from ..dialects.agent_framework_messages import MESSAGES
from ..errors import InvalidArgument
from ..store import Store
from ._opening import Location, import_framework, open_any

__all__ = ["History"]

_TRIED: Final = ">=1.20,<2"
_framework = import_framework(
    "agent_framework", "agent-framework-core", "agent-framework", _TRIED, "HistoryProvider", "Message"
)
_Provider: Any = _framework.HistoryProvider
_DEFAULT: Final = "default"  # the session of messages without one, as with the framework's own file provider


class History(_Provider):
    """Histories of the Agent Framework, kept in hitherto."""

    def __init__(
        self,
        store: Store | AsyncStore | Location,
        *,
        source_id: str = "hitherto",
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        skip_excluded: bool = False,
    ) -> None:
        """The options are those of the framework's own providers. Providers with different `source_id` have different
        histories of one session."""
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self.skip_excluded = skip_excluded
        self.store = open_any(store)

    def __repr__(self) -> str:
        return f"<History on {self.store!r}>"

    def __deepcopy__(self, memo: dict[int, object]) -> "History":
        """A copy of an agent keeps its history in the same store."""
        return copy.copy(self)

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  # for providers that keep messages in it
        **kwargs: Any,  # noqa: ARG002  # the framework's own
    ) -> list[Any]:
        """Return the messages of a session, in their order."""
        found = await shared_threads().run(self._read, session_id)
        messages = [_framework.Message.from_dict(whole) for whole in found]
        if self.skip_excluded:
            messages = [one for one in messages if not one.additional_properties.get("_excluded", False)]
        return messages

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Any],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002  # as above
        **kwargs: Any,  # noqa: ARG002  # as above
    ) -> None:
        """Add messages to a session, all or none of them. Those that repeat the end of
        the history are passed over."""
        if messages:
            given = [_plain(message.to_dict()) for message in messages]
            await shared_threads().run(self._add, session_id, given)

    def _key(self, session_id: str | None) -> str:
        return key_of("agent-framework", self.source_id, _DEFAULT if session_id is None else session_id)

    def _read(self, session_id: str | None, last: int | None = None) -> list[dict[str, Any]]:
        talk = self.store.find(self._key(session_id))
        found = [] if talk is None else (MESSAGES.whole(message) for message in talk.thread(last=last, events=True))
        return [whole for whole in found if whole is not None]

    def _add(self, session_id: str | None, given: list[dict[str, Any]]) -> None:
        new = _unknown(self._read(session_id, len(given) + 1), given)
        messages = [MESSAGES.keep(whole)[0] for whole in new]
        if not messages:
            return
        metadata = {
            "framework": "agent-framework",
            "source_id": escape(self.source_id),
            "session_id": escape(_DEFAULT if session_id is None else session_id),
        }
        asked = next((message.text for message in messages if message.role == "user"), "")
        talk = self.store.ensure(self._key(session_id), title=first_words(asked) or "", metadata=metadata)
        talk.extend(messages, on_conflict="follow")


def _plain(whole: Mapping[str, object]) -> dict[str, Any]:
    """Return a message as JSON has it."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(whole))
    except (TypeError, ValueError, RecursionError) as error:
        hint = "results of tools and additional_properties hold objects, lists, texts, numbers, booleans and None"
        raise InvalidArgument(f"a message is no JSON, and cannot be kept: {error}", hint=hint) from error
    return found


def _unknown(known: list[dict[str, Any]], given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages that do not repeat the `known` ones, which are the end of the stored history. There may be
    more known messages than given ones."""
    names, given_names = [_name(one) for one in known], [_name(one) for one in given]
    for start in range(len(given) - len(known) + 1 if known else 0):  # the whole history is in what is given
        if given_names[start : start + len(known)] == names and not (start == 0 and _is_lone_question(known)):
            return given[start + len(known) :]
    for count in range(min(len(known), len(given)), 0, -1):
        if names[-count:] == given_names[:count] and not (count == 1 and _is_lone_question(known[-1:])):
            return given[count:]
    return given


def _name(whole: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what makes a message the same as another one: its id, or what it says."""
    id = whole.get("message_id")
    return ("id", id) if id else ("text", whole.get("role"), json.dumps(whole.get("contents"), sort_keys=True))


def _is_lone_question(known: list[dict[str, Any]]) -> bool:
    """Return True for one question without an id: who asks the same again means it."""
    return len(known) == 1 and known[0].get("role") == "user" and not known[0].get("message_id")
