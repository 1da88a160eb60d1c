"""A session for openai-agents: `Runner.run(agent, "hi", session=session, hooks=session.hooks)`.

A session is a conversation of the kind `chat`, whose key is the id of the session. Each item is a message, so lists,
search and exports show what was said, and items come back equal.

The framework saves an answer after the tools that it calls have run. `session.hooks` saves it before: the answer
becomes messages when it is there, in one commit with a journal beside them, and each output of a tool goes into the
journal. When the framework adds the same items, they are recognised by the ids of their calls, and the journal is
removed in the commit that adds the outputs. If the process dies in a tool, the next run gets what was kept.
"""

import json
from collections.abc import Callable, Mapping
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from .._system.task_threads import shared_threads
from ..aio import AsyncStore
from ..conversation import Conversation
from ..errors import Closed, Conflict, InvalidArgument, NotFound
from ..model import Message, Saved, Usage
from ..store import Store
from ._openai_items import Item, call_of, item_of, message_of, pair
from ._opening import Location, import_framework, open_any

if TYPE_CHECKING:
    from agents import RunHooks, TResponseInputItem

__all__ = ["Session", "SessionClosed"]

_TRIED: Final = ">=0.17,<0.25"
_JOURNAL: Final = "openai-agents/journal/"  # then an id of the answer, then /output/ and the number of the call


class _Journal(NamedTuple):
    """An answer whose items the framework has not added yet, with the outputs of its tools so far."""

    name: str  # of the item that it is
    keys: list[str]  # of the messages that hold the answer
    answer: list[Item]
    outputs: dict[str, Item]  # by the name of the item that holds it, in the order of the calls


class SessionClosed(Closed, RuntimeError):
    """A session was used after its `close()`. The framework's own sessions raise a `RuntimeError` then."""


class Session:
    """A session of openai-agents, kept in hitherto."""

    def __init__(
        self,
        session_id: str,
        store: Store | AsyncStore | Location,
        *,
        session_settings: object = None,
        title: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """`title` and `metadata` describe the conversation if it is made here."""
        if not isinstance(session_id, str) or not session_id:
            raise InvalidArgument("the id of a session is text, and not empty")
        self.session_id = session_id
        self.session_settings = _as_settings({} if session_settings is None else session_settings)
        self.store = open_any(store)
        self._location = None if isinstance(store, Store | AsyncStore) else store
        self._about: dict[str, Any] = {"title": title, "metadata": metadata}
        self._usage: list[tuple[Item, Usage]] = []  # of answers that the framework has yet to add
        self._handle: Conversation | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Session {self.session_id!r:.40} in {self.store!r}>"

    def __deepcopy__(self, memo: dict[int, object]) -> "Session":
        """A copy is another session of the same id on the same store."""
        return type(self)(self.session_id, self.store, session_settings=self.session_settings, **self._about)

    def __reduce__(self) -> tuple[object, ...]:
        """A session is pickled by its location, and opened there again."""
        if self._location is None:
            raise TypeError("a session on an open store cannot be pickled: make it with the location of the store")
        return _unpickle, (type(self), self.session_id, self._location, self.session_settings, self._about)

    @property
    def talk(self) -> Conversation | None:
        """The conversation, to look at or to fork; None before the first item."""
        return self.store.find(self.session_id)

    @property
    def hooks(self) -> "RunHooks[Any]":
        """Hooks for `Runner.run`, which keep an answer before its tools run."""
        return _hooks_class()(self)

    # -- the protocol of the framework

    async def get_items(self, limit: int | None = None, *, wrapper: object = None) -> "list[TResponseInputItem]":  # noqa: ARG002  # asked for by the framework
        """Return the items in their order; the last ones if there is a limit."""
        return await self._run(self._read, self.session_settings.limit if limit is None else limit)

    async def add_items(self, items: "list[TResponseInputItem]", *, wrapper: object = None) -> None:  # noqa: ARG002  # as above
        """Add items, all or none of them."""
        await self._run(self._add, list(items))

    async def pop_item(self, *, wrapper: object = None) -> "TResponseInputItem | None":  # noqa: ARG002  # as above
        """Remove the last item and return it; None if there is none."""
        return await self._run(self._pop)

    async def clear_session(self, *, wrapper: object = None) -> None:  # noqa: ARG002  # as above
        """Remove all items. The conversation stays, with its title."""
        await self._run(self._clear)

    async def keep_answer(
        self, items: "list[TResponseInputItem]", usage: Usage | None = None, model: str | None = None
    ) -> None:
        """Keep an answer now if it calls tools, as the hooks do. Another one waits for `add_items`, because guardrails
        may refuse it; its usage is counted then."""
        await self._run(self._keep_answer, list(items), usage, model)

    async def keep_output(self, call_id: str, item: "TResponseInputItem") -> None:
        """Keep the output of a tool beside the answer that called it, until it is added."""
        await self._run(self._keep_output, call_id, item)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: "Callable[[TResponseInputItem], bool] | None" = None
    ) -> Any:
        """Return the last items, with a way to replace the end of them in one commit. The framework's compaction and
        its encrypted session look for this name; without it they go without compacting a part."""
        snapshot: Any = import_framework("agents.memory.session", "openai-agents", "openai-agents", _TRIED)
        made = getattr(snapshot, "_CompactionSnapshot", None)
        path = None if made is None else await self._run(self._end, limit)
        if made is None or path is None:
            return None

        async def replace_suffix(start: int, output: "list[TResponseInputItem]") -> bool:
            done: bool = await self._run(self._replace, path[start:], list(output), prune_prefix)
            return done

        return made([item_of(m) for m in path], len(path) < limit or path[0].parent is None, replace_suffix)

    def close(self) -> None:
        """End the use of this session. The store stays open."""
        self._closed = True

    async def _run(self, work: Any, *args: object) -> Any:
        if self._closed:
            raise SessionClosed(f"{type(self).__name__} is closed", hint="make another one of the same id")
        return await shared_threads().run(work, *args)

    # -- what they do, in a thread

    def _read(self, limit: int | None) -> list[Item]:
        talk = self.talk
        if talk is None or limit == 0:
            return []
        last = None if limit is None or limit < 0 else limit
        messages = talk.thread(events=True, last=last)
        items = [item_of(message) for message in messages]
        for journal in _journals(talk):
            items = _with_outputs(items, journal)
        return items if last is None else items[-last:]

    def _add(self, items: list[Item]) -> None:
        if not items:
            return
        messages = [message_of(item, usage=self._usage_of(item)) for item in items]
        self._write(lambda talk: self._add_to(talk, items, messages))

    def _write(self, work: Callable[[Conversation], object]) -> None:
        """Write to the conversation of the session, which is made if it is not there. The handle is kept, because
        looking for it takes about as long as the write."""
        if self._handle is not None:
            try:
                work(self._handle)
                return
            except NotFound:  # it was purged
                self._handle = None
        self._handle = self.store.ensure(self.session_id, **self._about)
        work(self._handle)

    def _add_to(self, talk: Conversation, items: list[Item], messages: list[Message]) -> None:
        for journal in _journals(talk) if any(map(call_of, items)) else ():
            places = pair(journal.answer, items)
            if any(place is not None for place in places):
                self._confirm(talk, journal, places, items, messages)
                return
        talk.extend(messages, on_conflict="follow")

    def _confirm(
        self,
        talk: Conversation,
        journal: _Journal,
        places: list[int | None],
        items: list[Item],
        messages: list[Message],
    ) -> None:
        """Add the items that the journal does not have yet, and remove it."""
        kept = {message.key: message for message in talk.get(keys=journal.keys, missing_ok=True)}
        there: set[int] = set()
        for place, key, item in zip(places, journal.keys, journal.answer, strict=True):
            if place is not None and key in kept:
                there.add(place)
                if items[place] != item:  # the framework has changed it, as its settings ask
                    talk.amend(kept[key], messages[place])
        with talk.batch(on_conflict="follow" if len(there) < len(items) else "branch") as batch:
            batch.extend(message for place, message in enumerate(messages) if place not in there)
            for name in (journal.name, *journal.outputs):
                batch.items.delete(name, missing_ok=True)

    def _pop(self) -> Item | None:
        while (talk := self.talk) is not None and talk.at is not None:
            for journal in _journals(talk):
                if journal.outputs and talk.thread(events=True, last=1)[0].key == journal.keys[-1]:
                    name, output = list(journal.outputs.items())[-1]
                    talk.items.delete(name, missing_ok=True)
                    return output
            try:
                message = talk.pop()
            except NotFound:  # another process was faster
                continue
            return item_of(message)
        return None

    def _clear(self) -> None:
        talk = self.talk
        if talk is not None:
            talk.clear()

    def _end(self, limit: int) -> list[Saved] | None:
        """Return the last messages; None while an answer is on its way."""
        talk = self.talk
        return [] if talk is None else None if _journals(talk) else talk.thread(events=True, last=limit)

    def _replace(self, seen: list[Saved], output: list[Item], is_over: Callable[[Any], bool] | None) -> bool:
        """Replace these messages, if they are still the end. They become a branch. Messages at the beginning that are
        over go for good."""
        talk = self.talk
        messages = [message_of(item) for item in output]
        if talk is None or not seen or _places(talk.thread(events=True, last=len(seen))) != _places(seen):
            return False
        over: list[Saved] = []
        if is_over is not None:
            path = talk.thread(events=True)[: -len(seen)]
            over = list(takewhile(lambda message: is_over(item_of(message)), path))
            messages = path[len(over) :] + messages if over else messages
        try:
            if messages:
                place = talk.fork(before=over[0] if over else seen[0])
                with place.batch(on_conflict="replace", expect_head=seen[-1]) as batch:
                    batch.extend(messages)
            if over or not messages:
                self.store.delete([over[0] if over else seen[0]], recursive=True)
        except (Conflict, NotFound):
            return False
        return True

    # -- what the hooks do

    def _keep_answer(self, items: list[Item], usage: Usage | None, model: str | None) -> None:
        if model:
            self._write(lambda talk: talk.configure(model=model))  # nothing is written if it is the same
        if usage is not None and items:
            self._usage = [(items[-1], usage)]
        if not any(call_of(item) for item in items):
            return
        messages = [message_of(item, usage=self._usage_of(item)) for item in items]
        name = uuid4().hex
        keys = [f"{_JOURNAL}{name}/{number}" for number in range(len(items))]
        kept = [replace(message, key=key) for message, key in zip(messages, keys, strict=True)]

        def write(talk: Conversation) -> None:
            with talk.batch(on_conflict="follow") as batch:
                batch.extend(kept)
                batch.items[_JOURNAL + name] = _encode([keys, items])

        self._write(write)

    def _keep_output(self, call: str, item: Item) -> None:
        talk = self.talk
        for journal in [] if talk is None else _journals(talk):
            calls = [call_of(item) for item in journal.answer]
            if talk is not None and call in calls:
                talk.items[f"{journal.name}/output/{calls.index(call):04}"] = _encode(item)

    def _usage_of(self, item: Item) -> Usage | None:
        """Return the tokens of the answer that ends with this item."""
        return next((usage for last, usage in self._usage if last == item), None)


def _as_settings(given: object) -> Any:
    """Return settings of the framework. Versions that take no dict for them do so here."""
    module: Any = import_framework("agents.memory.session_settings", "openai-agents", "openai-agents", _TRIED)
    coerce = getattr(module, "coerce_session_settings", None)
    if coerce is not None:
        return coerce(given)
    return module.SessionSettings(**given) if isinstance(given, dict) else given


def _unpickle(
    kind: type[Session], session_id: str, location: Location, settings: object, about: dict[str, Any]
) -> Session:
    return kind(session_id, location, session_settings=settings, **about)


def _encode(value: object) -> bytes:
    """Encode as ASCII JSON, which can hold halves of surrogate pairs and integers of any size."""
    return json.dumps(value).encode()


def _journals(talk: Conversation) -> list[_Journal]:
    found: list[_Journal] = []
    for item in talk.items.scan(_JOURNAL):
        if found and item.name.startswith(f"{found[-1].name}/output/"):
            found[-1].outputs[item.name] = json.loads(item.value)
        else:
            keys, answer = json.loads(item.value)
            found.append(_Journal(item.name, keys, answer, {}))
    return found


def _places(messages: list[Saved]) -> list[tuple[str, int]]:
    return [(message.id, message.revision) for message in messages]


def _with_outputs(items: list[Item], journal: _Journal) -> list[Item]:
    """Return the items with the outputs of a journal behind the answer that called for them."""
    last = journal.answer[-1]
    at = next((at for at in reversed(range(len(items))) if items[at] == last), None)
    return items if at is None else [*items[: at + 1], *journal.outputs.values(), *items[at + 1 :]]


def _model_name(agent: Any) -> str | None:
    """Return the name of the model of an agent, as far as the agent says."""
    model = getattr(agent, "model", None)
    name = model if isinstance(model, str) else getattr(model, "model", None)
    return name if isinstance(name, str) else None


def _as_usage(counted: Any) -> Usage | None:
    if not (counted.input_tokens or counted.output_tokens):
        return None
    read = getattr(getattr(counted, "input_tokens_details", None), "cached_tokens", 0) or 0
    thought = getattr(getattr(counted, "output_tokens_details", None), "reasoning_tokens", 0) or 0
    return Usage(counted.input_tokens, counted.output_tokens, cache_read_tokens=read, reasoning_tokens=thought)


@cache
def _hooks_class() -> Any:
    """The class of the hooks. Its base is the framework's, so it is made when it is wanted."""
    agents: Any = import_framework("agents", "openai-agents", "openai-agents", _TRIED)

    class SessionHooks(agents.RunHooks):
        """Hooks that keep an answer before its tools run, and each output when it is there."""

        def __init__(self, session: Session) -> None:
            self.session = session

        async def on_llm_end(self, context: object, agent: object, response: Any) -> None:  # noqa: ARG002  # the framework's
            usage = _as_usage(response.usage)
            await self.session.keep_answer(response.to_input_items(), usage, _model_name(agent))

        async def on_tool_end(self, context: Any, agent: object, tool: object, result: object) -> None:  # noqa: ARG002  # as above
            call: Any = getattr(context, "tool_call", None)
            if getattr(call, "type", None) == "function_call":
                item = agents.ItemHelpers.tool_call_output_item(call, result)
                await self.session.keep_output(call.call_id, dict(item))

    return SessionHooks
