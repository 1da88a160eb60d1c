"""The async facade: the same names, awaited.

Everything is decided in the sync store; this module only moves the waiting out of the event loop. A decorator makes
each async method from the sync one, with its name, parameters and docstring. Written out are appends, listings, calls
that take a handle, and properties: one that costs no I/O stays a property, another one is awaited.

Calls run in threads of our own, because the loop's default executor has a handful, and others wait in it too. The
appends of all tasks share a thread and a commit: `_append_queue` has them. A lazy listing of the store is an async
iterator here.

A task that is cancelled while a write is on its way waits for its outcome and is cancelled then: a message is never
left between saved and not saved. The price is that cancelling waits for at most one commit."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from datetime import datetime
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, Generic, Literal, ParamSpec, TypeVar
from uuid import UUID

from .._engine.appending import OnConflict
from .._engine.filters import Path
from .._system.task_threads import Threads, outlast
from ..backend import CHAT
from ..conversation import Attachments, Conversation
from ..events import Listener
from ..listing import ConversationInfo, MessageListing
from ..model import Message, Saved, Setup
from ..opening import open as open_sync
from ..reports import CloseReport, Hit, PurgeReport
from ..store import Store
from ._append_queue import StoreThreads
from ._state import AsyncBatch, AsyncItems

if TYPE_CHECKING:
    from ..retention import RetentionPolicy

__all__ = ["AsyncBatch", "AsyncConversation", "AsyncItems", "AsyncMessageListing", "AsyncStore", "open_async"]

_AHEAD = 32  # messages of a listing fetched at a time

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])


class _Facade(Generic[S]):
    """Something sync, and the threads in which its methods run."""

    def __init__(self, sync: S, threads: StoreThreads) -> None:
        self._sync = sync
        self.threads = threads
        self._run = threads.run

    def __repr__(self) -> str:
        return f"<Async{repr(self._sync)[1:]}"

    @property
    def sync(self) -> S:
        """The sync object itself, for code that waits."""
        return self._sync

    def _wrap(self, talk: Conversation) -> "AsyncConversation":
        return AsyncConversation(talk, self.threads)


def _make_async(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[_Facade[S], P], Coroutine[None, None, T]]:
    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **how: P.kwargs) -> T:
        return await self._run(method, self._sync, *args, **how)

    return call


def _make_async_handle(
    method: Callable[Concatenate[S, P], Conversation],
) -> "Callable[Concatenate[_Facade[S], P], Coroutine[None, None, AsyncConversation]]":
    """The same of a method that returns a handle. One that returns its own object does so here, too."""

    @wraps(method)
    async def call(self: _Facade[S], /, *args: P.args, **how: P.kwargs) -> "AsyncConversation":
        found = await self._run(method, self._sync, *args, **how)
        return self if isinstance(self, AsyncConversation) and found is self.sync else self._wrap(found)

    return call


def _documented_by(method: Callable[..., object]) -> Callable[[F], F]:
    """A method that is written out here has the docstring of the sync one."""

    def document(twin: F) -> F:
        twin.__doc__ = method.__doc__
        return twin

    return document


class AsyncMessageListing(AsyncIterator[Saved]):
    """Messages, read as they are asked for. `cursor` marks the place after the last one given out."""

    def __init__(self, begin: Callable[[], MessageListing], threads: Threads) -> None:
        self._begin = begin
        self._threads = threads
        self._listing: MessageListing | None = None
        self._ready: list[tuple[Saved, str | None]] = []
        self._cursor: str | None = None

    def __aiter__(self) -> "AsyncMessageListing":
        return self

    async def __anext__(self) -> Saved:
        if not self._ready:
            self._ready = await self._threads.run(self._fetch)
        if not self._ready:
            raise StopAsyncIteration
        message, self._cursor = self._ready.pop()
        return message

    def _fetch(self) -> list[tuple[Saved, str | None]]:
        """The next few messages, the last one first."""
        if self._listing is None:
            self._listing = self._begin()
        found: list[tuple[Saved, str | None]] = []
        for message in self._listing:
            found.append((message, self._listing.cursor))
            if len(found) == _AHEAD:
                break
        return found[::-1]

    @property
    def cursor(self) -> str | None:
        return self._cursor


class AsyncConversation(_Facade[Conversation]):
    """A handle on one conversation, awaited. See `Conversation`."""

    @property
    def id(self) -> str:
        return self._sync.id

    @property
    def at(self) -> str | None:
        return self._sync.at

    @property
    def head(self) -> str | None:
        return self._sync.head

    @property
    def title(self) -> str:
        return self._sync.title

    @property
    def key(self) -> str | None:
        return self._sync.key

    @property
    def project(self) -> str | None:
        return self._sync.project

    @property
    def metadata(self) -> dict[str, str]:
        return self._sync.metadata

    @property
    def exportable(self) -> bool:
        return self._sync.exportable

    @property
    def count(self) -> int:
        return self._sync.count

    @property
    def created_at(self) -> datetime:
        return self._sync.created_at

    @property
    def active_at(self) -> datetime:
        return self._sync.active_at

    @property
    def held(self) -> bool:
        return self._sync.held

    async def setup(self) -> Setup:
        """Provider, model, system prompt and tools in force where this handle stands."""
        return await self._run(lambda: self._sync.setup)

    @property
    def system_prompt(self) -> str:
        """Read from the store without awaiting, as the three below are. `await talk.setup()` has all four, and lets the
        event loop go on."""
        return self._sync.system_prompt

    @property
    def provider(self) -> str:
        return self._sync.provider

    @property
    def model(self) -> str:
        return self._sync.model

    @property
    def tools(self) -> list[dict[str, object]]:
        return self._sync.tools

    refresh = _make_async_handle(Conversation.refresh)

    @_documented_by(Conversation.append)
    async def append(
        self, message: Message, *, on_conflict: OnConflict = "branch", expect_head: str | Saved | None = None
    ) -> Saved:
        return (await self.threads.extend(self._sync, (message,), on_conflict, expect_head))[0]

    @_documented_by(Conversation.extend)
    async def extend(
        self, messages: Iterable[Message], *, on_conflict: OnConflict = "branch", expect_head: str | Saved | None = None
    ) -> list[Saved]:
        return await self.threads.extend(self._sync, messages, on_conflict, expect_head)

    configure = _make_async(Conversation.configure)
    thread = _make_async(Conversation.thread)
    usage = _make_async(Conversation.usage)
    branches = _make_async(Conversation.branches)
    setups = _make_async(Conversation.setups)
    partials = _make_async(Conversation.partials)
    accept = _make_async(Conversation.accept)
    discard = _make_async(Conversation.discard)
    compact = _make_async(Conversation.compact)
    snapshot = _make_async(Conversation.snapshot)
    detach = _make_async_handle(Conversation.detach)
    fork = _make_async_handle(Conversation.fork)
    follow = _make_async_handle(Conversation.follow)
    undo = _make_async(Conversation.undo)
    subagent = _make_async_handle(Conversation.subagent)
    rename = _make_async(Conversation.rename)
    describe = _make_async(Conversation.describe)
    label = _make_async(Conversation.label)
    hold = _make_async(Conversation.hold)
    release = _make_async(Conversation.release)
    get = _make_async(Conversation.get)
    amend = _make_async(Conversation.amend)
    pop = _make_async(Conversation.pop)
    clear = _make_async(Conversation.clear)
    copy_to = _make_async_handle(Conversation.copy_to)

    @property
    def items(self) -> AsyncItems:
        """The items of the conversation, awaited."""
        return AsyncItems(self._sync.items, self.threads)

    @_documented_by(Conversation.batch)
    def batch(self, *, on_conflict: OnConflict = "branch", expect_head: str | Saved | None = None) -> AsyncBatch:
        return AsyncBatch(self._sync.batch(on_conflict=on_conflict, expect_head=expect_head), self.threads)


class AsyncStore(_Facade[Store]):
    """Conversations, kept, awaited. Open one with `hitherto.open_async`. See `Store`."""

    @_documented_by(Store.close)
    async def close(self, *, timeout_seconds: float = 10.0) -> CloseReport:
        if self.threads.closed:
            return self._sync.close()  # it is closed: the same report
        closing = asyncio.get_running_loop().create_task(self._close(timeout_seconds))
        return await outlast(closing)

    async def _close(self, timeout_seconds: float) -> CloseReport:
        """Close the store when the appends that were called before are done."""
        left = await self.threads.finish_appends(timeout_seconds)
        report = await self._run(self._sync.close, timeout_seconds=left)
        self.threads.close()
        return report

    start = _make_async_handle(Store.start)
    ensure = _make_async_handle(Store.ensure)
    restore = _make_async_handle(Store.restore)
    conversation = _make_async_handle(Store.conversation)

    @_documented_by(Store.find)
    async def find(self, key: str, *, kind: str = CHAT) -> AsyncConversation | None:
        talk = await self._run(self._sync.find, key, kind=kind)
        return None if talk is None else self._wrap(talk)

    @property
    def items(self) -> AsyncItems:
        """The items of the workspace, awaited."""
        return AsyncItems(self._sync.items, self.threads)

    @_documented_by(Store.latest)
    async def latest(self, *, project: Path | None = None) -> AsyncConversation | None:
        talk = await self._run(self._sync.latest, project=project)
        return None if talk is None else self._wrap(talk)

    conversations = _make_async(Store.conversations)

    @_documented_by(Store.save)
    async def save(
        self,
        messages: Iterable[Message],
        *,
        parent: str | Saved | None = None,
        conversation: str | AsyncConversation | ConversationInfo | None = None,
    ) -> list[str]:
        return await self._run(self._sync.save, messages, parent=parent, conversation=_plain(conversation))

    get = _make_async(Store.get)
    message = _make_async(Store.message)
    thread = _make_async(Store.thread)

    def messages(
        self,
        *,
        newest_first: bool = True,
        offset: int = 0,
        cursor: str | None = None,
        conversation: str | AsyncConversation | ConversationInfo | None = None,
        label: str | None = None,
        subagent: str | None = None,
        attachments: Attachments = "load",
    ) -> AsyncMessageListing:
        """Messages as an async iterator."""
        return AsyncMessageListing(
            lambda: self._sync.messages(
                newest_first=newest_first,
                offset=offset,
                cursor=cursor,
                conversation=_plain(conversation),
                label=label,
                subagent=subagent,
                attachments=attachments,
            ),
            self.threads,
        )

    delete = _make_async(Store.delete)

    @_documented_by(Store.search)
    async def search(
        self,
        query: str,
        *,
        limit: int = 20,
        offset: int = 0,
        mode: Literal["match", "nearest", "auto"] = "match",
        order: Literal["newest", "best"] = "newest",
        role: str | None = None,
        project: Path | None = None,
        conversation: str | AsyncConversation | ConversationInfo | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        include_expired: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Hit]:
        return await self._run(
            self._sync.search,
            query,
            limit=limit,
            offset=offset,
            mode=mode,
            order=order,
            role=role,
            project=project,
            conversation=_plain(conversation),
            since=since,
            until=until,
            include_expired=include_expired,
            progress=progress,
        )

    maintain = _make_async(Store.maintain)
    backup = _make_async(Store.backup)

    @_documented_by(Store.purge)
    async def purge(
        self, conversation: str | UUID | AsyncConversation | ConversationInfo, *, reason: str
    ) -> PurgeReport:
        plain = conversation.sync if isinstance(conversation, AsyncConversation) else conversation
        return await self._run(self._sync.purge, plain, reason=reason)

    register_checkpoint_store = _make_async(Store.register_checkpoint_store)

    async def retention(self) -> "RetentionPolicy | None":
        """After how long conversations are due, as it stands in the store now; None: never."""
        return await self._run(lambda: self._sync.retention)

    async def quota(self) -> int | None:
        """How many bytes this workspace may hold, as it stands in the store now; None: as many as the disk."""
        return await self._run(lambda: self._sync.quota)

    set_quota = _make_async(Store.set_quota)

    async def used_bytes(self) -> int:
        """How many bytes of its quota this workspace uses."""
        return await self._run(lambda: self._sync.used_bytes)

    async def retention_floor(self) -> int | None:
        """For how many days nothing is destroyed, as it stands in the store now; None: there is no floor."""
        return await self._run(lambda: self._sync.retention_floor)

    set_retention = _make_async(Store.set_retention)
    set_retention_floor = _make_async(Store.set_retention_floor)
    plan_purge = _make_async(Store.plan_purge)
    purge_matching = _make_async(Store.purge_matching)
    plan_sweep = _make_async(Store.plan_sweep)
    sweep = _make_async(Store.sweep)
    rotate = _make_async(Store.rotate)
    seal = _make_async(Store.seal)
    unseal = _make_async(Store.unseal)
    quarantine = _make_async(Store.quarantine)
    purge_quarantine = _make_async(Store.purge_quarantine)

    @property
    def is_closed(self) -> bool:
        return self._sync.is_closed

    @property
    def read_only(self) -> str | None:
        return self._sync.read_only

    @_documented_by(Store.resume_writing)
    async def resume_writing(self) -> None:
        self._sync.resume_writing()

    @_documented_by(Store.subscribe)
    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return self._sync.subscribe(listener)

    wait_for_listeners = _make_async(Store.wait_for_listeners)

    @property
    def key_id(self) -> str | None:
        return self._sync.key_id

    scrub = _make_async(Store.scrub)
    stats = _make_async(Store.stats)
    activity = _make_async(Store.activity)
    verify = _make_async(Store.verify)


def _plain(
    conversation: str | AsyncConversation | ConversationInfo | None,
) -> str | Conversation | ConversationInfo | None:
    return conversation.sync if isinstance(conversation, AsyncConversation) else conversation


class _Opening:
    """The result of `open_async`: `async with` opens and closes the store, `await` only opens it."""

    def __init__(self, begin: Callable[[], Store]) -> None:
        self._begin = begin
        self._store: AsyncStore | None = None

    async def _open(self) -> AsyncStore:
        threads = StoreThreads()
        opened: list[Store] = []
        try:
            await threads.run(lambda: opened.append(self._begin()))
        except BaseException:
            for store in opened:  # we were cancelled when it was open already
                store.close()
            threads.close()
            raise
        return AsyncStore(opened[0], threads)

    def __await__(self) -> Generator[object, None, AsyncStore]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()


def _make_async_opening(open_sync: Callable[P, Store]) -> Callable[P, _Opening]:
    @wraps(open_sync, assigned=())
    def open_async(*args: P.args, **how: P.kwargs) -> _Opening:
        """Open a store for async code: `async with hitherto.open_async("chats.db") as store`. See `open`."""
        return _Opening(partial(open_sync, *args, **how))

    return open_async


open_async = _make_async_opening(open_sync)
