"""The async facade: the same names, awaited.

Everything is decided in the sync store; this module only moves the waiting out of the event loop. Calls run in threads
of our own, because the loop's default executor has a handful, and others wait in it too. The appends of all tasks share
a thread and a commit: `_append_queue` has them. A lazy listing of the store is an async iterator here. A property
that costs no I/O stays a plain property.

A task that is cancelled while a write is on its way waits for its outcome and is cancelled then: a message is never
left between saved and not saved. The price is that cancelling waits for at most one commit."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from datetime import date, datetime
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from .._engine.context import MAX_ATTACHMENT, MAX_WRITE_BYTES
from .._task_threads import Threads, outlast
from ..conversation import Attachments, Branch, Conversation, OnConflict, SetupChange, ThreadUsage
from ..events import Listener, Quarantined
from ..listing import ConversationInfo, MessageListing, Page
from ..model import Message, Saved, Setup
from ..opening import open as open_sync
from ..reports import CloseReport, Hit, Maintenance, Partial, PurgeReport, Stats, VerifyReport
from ..store import Path, Store, Tools
from ._append_queue import StoreThreads

if TYPE_CHECKING:
    from ..keys import Key
    from ..reports import RotationProgress, RotationReport
    from ..retention import RetentionPolicy, SweepPlan, SweepReport
    from ..sanitiser import Sanitiser
    from ..snapshots import Snapshot, SnapshotStore

__all__ = ["AsyncConversation", "AsyncMessageListing", "AsyncStore", "open_async"]

_AHEAD = 32  # messages of a listing fetched at a time


T = TypeVar("T")


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


class AsyncConversation:
    """A handle on one conversation, awaited. See `Conversation`."""

    def __init__(self, talk: Conversation, threads: StoreThreads) -> None:
        self._talk = talk
        self._run = threads.run
        self._threads = threads

    def __repr__(self) -> str:
        return f"<Async{repr(self._talk)[1:]}"

    def _wrap(self, talk: Conversation) -> "AsyncConversation":
        return AsyncConversation(talk, self._threads)

    @property
    def sync(self) -> Conversation:
        """The handle itself, for code that waits."""
        return self._talk

    @property
    def id(self) -> str:
        return self._talk.id

    @property
    def at(self) -> str | None:
        return self._talk.at

    @property
    def head(self) -> str | None:
        return self._talk.head

    @property
    def title(self) -> str:
        return self._talk.title

    @property
    def key(self) -> str | None:
        return self._talk.key

    @property
    def project(self) -> str | None:
        return self._talk.project

    @property
    def metadata(self) -> dict[str, str]:
        return self._talk.metadata

    @property
    def exportable(self) -> bool:
        return self._talk.exportable

    @property
    def count(self) -> int:
        return self._talk.count

    @property
    def created_at(self) -> datetime:
        return self._talk.created_at

    @property
    def active_at(self) -> datetime:
        return self._talk.active_at

    @property
    def held(self) -> bool:
        return self._talk.held

    async def setup(self) -> Setup:
        """Provider, model, system prompt and tools in force where this handle stands."""
        return await self._run(lambda: self._talk.setup)

    @property
    def system_prompt(self) -> str:
        """Read from the store without awaiting, as the three below are. `await talk.setup()` has all four, and lets the
        event loop go on."""
        return self._talk.system_prompt

    @property
    def provider(self) -> str:
        return self._talk.provider

    @property
    def model(self) -> str:
        return self._talk.model

    @property
    def tools(self) -> list[dict[str, object]]:
        return self._talk.tools

    async def refresh(self) -> "AsyncConversation":
        await self._run(self._talk.refresh)
        return self

    async def append(
        self, message: Message, *, on_conflict: OnConflict = "branch", expect_head: str | Saved | None = None
    ) -> Saved:
        return (await self._threads.extend(self._talk, (message,), on_conflict, expect_head))[0]

    async def extend(
        self, messages: Iterable[Message], *, on_conflict: OnConflict = "branch", expect_head: str | Saved | None = None
    ) -> list[Saved]:
        return await self._threads.extend(self._talk, messages, on_conflict, expect_head)

    async def configure(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        system_prompt: str | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        await self._run(self._talk.configure, provider=provider, model=model, system_prompt=system_prompt, tools=tools)

    async def thread(self, *, full: bool = False, attachments: Attachments = "load") -> list[Saved]:
        return await self._run(self._talk.thread, full=full, attachments=attachments)

    async def usage(self) -> ThreadUsage:
        return await self._run(self._talk.usage)

    async def branches(self) -> list[Branch]:
        return await self._run(self._talk.branches)

    async def setups(self) -> list[SetupChange]:
        return await self._run(self._talk.setups)

    async def partials(self) -> list[Partial]:
        return await self._run(self._talk.partials)

    async def accept(self, partial: Partial) -> list[Saved]:
        return await self._run(self._talk.accept, partial)

    async def discard(self, partial: Partial) -> None:
        await self._run(self._talk.discard, partial)

    async def compact(self, summary: "str | Message | Callable[[list[Saved]], str | Message]") -> Saved:
        return await self._run(self._talk.compact, summary)

    async def snapshot(self, *, metadata: Mapping[str, str] | None = None) -> "Snapshot":
        return await self._run(self._talk.snapshot, metadata=metadata)

    async def detach(self, *, title: str | None = None) -> "AsyncConversation":
        return self._wrap(await self._run(self._talk.detach, title=title))

    async def fork(
        self, at: str | Saved | None = None, *, before: str | Saved | None = None, main: bool = True
    ) -> "AsyncConversation":
        return self._wrap(await self._run(self._talk.fork, at, before=before, main=main))

    async def follow(self) -> "AsyncConversation":
        await self._run(self._talk.follow)
        return self

    async def undo(self) -> list[Saved]:
        return await self._run(self._talk.undo)

    async def subagent(self, name: str, run_id: str, *, call: str | Saved | None = None) -> "AsyncConversation":
        return self._wrap(await self._run(self._talk.subagent, name, run_id, call=call))

    async def rename(self, title: str) -> None:
        await self._run(self._talk.rename, title)

    async def describe(self, metadata: Mapping[str, str]) -> None:
        await self._run(self._talk.describe, metadata)

    async def label(self, label: str | None, *, message: str | Saved | None = None) -> None:
        await self._run(self._talk.label, label, message=message)

    async def hold(self) -> None:
        await self._run(self._talk.hold)

    async def release(self) -> None:
        await self._run(self._talk.release)


class AsyncStore:
    """Conversations, kept, awaited. Open one with `hitherto.open_async`. See `Store`."""

    def __init__(self, store: Store, threads: StoreThreads) -> None:
        self._store = store
        self.threads = threads
        self._run = threads.run

    def __repr__(self) -> str:
        return f"<Async{repr(self._store)[1:]}"

    def _wrap(self, talk: Conversation) -> AsyncConversation:
        return AsyncConversation(talk, self.threads)

    @property
    def sync(self) -> Store:
        """The store itself, for code that waits."""
        return self._store

    async def close(self, *, timeout_seconds: float = 10.0) -> CloseReport:
        if self.threads.closed:
            return self._store.close()  # it is closed: the same report
        closing = asyncio.get_running_loop().create_task(self._close(timeout_seconds))
        return await outlast(closing)

    async def _close(self, timeout_seconds: float) -> CloseReport:
        """Close the store when the appends that were called before are done."""
        left = await self.threads.finish_appends(timeout_seconds)
        report = await self._run(self._store.close, timeout_seconds=left)
        self.threads.close()
        return report

    async def start(
        self,
        *,
        title: str = "",
        system_prompt: str = "",
        provider: str = "",
        model: str = "",
        tools: Tools = (),
        metadata: Mapping[str, str] | None = None,
        project: Path | None = None,
        id: str | UUID | None = None,
    ) -> AsyncConversation:
        talk = await self._run(
            self._store.start,
            title=title,
            system_prompt=system_prompt,
            provider=provider,
            model=model,
            tools=tools,
            metadata=metadata,
            project=project,
            id=id,
        )
        return self._wrap(talk)

    async def ensure(
        self,
        key: str,
        *,
        title: str = "",
        system_prompt: str = "",
        provider: str = "",
        model: str = "",
        tools: Tools = (),
        metadata: Mapping[str, str] | None = None,
        project: Path | None = None,
    ) -> AsyncConversation:
        talk = await self._run(
            self._store.ensure,
            key,
            title=title,
            system_prompt=system_prompt,
            provider=provider,
            model=model,
            tools=tools,
            metadata=metadata,
            project=project,
        )
        return self._wrap(talk)

    async def restore(
        self, snapshot: "Snapshot", *, title: str | None = None, project: Path | None = None
    ) -> AsyncConversation:
        return self._wrap(await self._run(self._store.restore, snapshot, title=title, project=project))

    async def conversation(self, id: str | UUID | ConversationInfo | Saved) -> AsyncConversation:
        return self._wrap(await self._run(self._store.conversation, id))

    async def latest(self, *, project: Path | None = None) -> AsyncConversation | None:
        talk = await self._run(self._store.latest, project=project)
        return None if talk is None else self._wrap(talk)

    async def conversations(
        self,
        *,
        limit: int = 20,
        cursor: str | None = None,
        project: Path | None = None,
        metadata: Mapping[str, str] | None = None,
        total: bool = False,
        include_expired: bool = False,
    ) -> Page:
        return await self._run(
            self._store.conversations,
            limit=limit,
            cursor=cursor,
            project=project,
            metadata=metadata,
            total=total,
            include_expired=include_expired,
        )

    async def save(
        self,
        messages: Iterable[Message],
        *,
        parent: str | Saved | None = None,
        conversation: str | AsyncConversation | ConversationInfo | None = None,
    ) -> list[str]:
        return await self._run(self._store.save, messages, parent=parent, conversation=_plain(conversation))

    async def get(self, ids: Iterable[str | Saved], *, attachments: Attachments = "load") -> list[Saved]:
        return await self._run(self._store.get, ids, attachments=attachments)

    async def message(self, id: str | Saved, *, attachments: Attachments = "load") -> Saved:
        return await self._run(self._store.message, id, attachments=attachments)

    async def thread(self, id: str | Saved, *, attachments: Attachments = "load") -> list[Saved]:
        return await self._run(self._store.thread, id, attachments=attachments)

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
            lambda: self._store.messages(
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

    async def delete(
        self, ids: Iterable[str | Saved], *, recursive: bool = False, missing_ok: bool = False
    ) -> list[str]:
        return await self._run(self._store.delete, ids, recursive=recursive, missing_ok=missing_ok)

    async def search(
        self,
        query: str,
        *,
        limit: int = 20,
        offset: int = 0,
        ranked: bool = False,
        role: str | None = None,
        project: Path | None = None,
        conversation: str | AsyncConversation | ConversationInfo | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        include_expired: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Hit]:
        return await self._run(
            self._store.search,
            query,
            limit=limit,
            offset=offset,
            ranked=ranked,
            role=role,
            project=project,
            conversation=_plain(conversation),
            since=since,
            until=until,
            include_expired=include_expired,
            progress=progress,
        )

    async def maintain(
        self, seconds: float | None = None, *, progress: Callable[[str, int], None] | None = None
    ) -> Maintenance:
        return await self._run(self._store.maintain, seconds, progress=progress)

    async def backup(self, path: Path) -> None:
        await self._run(self._store.backup, path)

    async def purge(
        self, conversation: str | UUID | AsyncConversation | ConversationInfo, *, reason: str
    ) -> PurgeReport:
        plain = conversation.sync if isinstance(conversation, AsyncConversation) else conversation
        return await self._run(self._store.purge, plain, reason=reason)

    async def register_checkpoint_store(self, place: "SnapshotStore") -> tuple[tuple[str, str], ...]:
        return await self._run(self._store.register_checkpoint_store, place)

    async def retention(self) -> "RetentionPolicy | None":
        """After how long conversations are due, as it stands in the store now; None: never."""
        return await self._run(lambda: self._store.retention)

    async def quota(self) -> int | None:
        """How many bytes this workspace may hold, as it stands in the store now; None: as many as the disk."""
        return await self._run(lambda: self._store.quota)

    async def set_quota(self, limit: int | None) -> None:
        await self._run(self._store.set_quota, limit)

    async def used_bytes(self) -> int:
        """How many bytes of its quota this workspace uses."""
        return await self._run(lambda: self._store.used_bytes)

    async def set_retention(self, policy: "RetentionPolicy | None") -> "SweepReport | None":
        return await self._run(self._store.set_retention, policy)

    async def plan_sweep(self, policy: "RetentionPolicy | None" = None, *, now: datetime | None = None) -> "SweepPlan":
        return await self._run(self._store.plan_sweep, policy, now=now)

    async def sweep(
        self,
        policy: "RetentionPolicy | None" = None,
        *,
        now: datetime | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> "SweepReport":
        return await self._run(self._store.sweep, policy, now=now, progress=progress)

    async def rotate(
        self,
        key: "Key | bytes",
        *,
        reencrypt: bool = False,
        progress: "Callable[[RotationProgress], None] | None" = None,
    ) -> "RotationReport":
        return await self._run(self._store.rotate, key, reencrypt=reencrypt, progress=progress)

    async def seal(
        self, key: "Key | bytes", *, progress: "Callable[[RotationProgress], None] | None" = None
    ) -> "RotationReport":
        return await self._run(self._store.seal, key, progress=progress)

    async def unseal(self, *, progress: "Callable[[RotationProgress], None] | None" = None) -> "RotationReport":
        return await self._run(self._store.unseal, progress=progress)

    async def quarantine(self) -> list[Quarantined]:
        return await self._run(self._store.quarantine)

    async def purge_quarantine(self, *, older_than_seconds: float = 0.0) -> PurgeReport:
        return await self._run(self._store.purge_quarantine, older_than_seconds=older_than_seconds)

    @property
    def is_closed(self) -> bool:
        return self._store.is_closed

    @property
    def read_only(self) -> str | None:
        return self._store.read_only

    async def resume_writing(self) -> None:
        self._store.resume_writing()

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return self._store.subscribe(listener)

    async def wait_for_listeners(self, *, timeout_seconds: float = 10.0) -> bool:
        return await self._run(self._store.wait_for_listeners, timeout_seconds=timeout_seconds)

    @property
    def key_id(self) -> str | None:
        return self._store.key_id

    async def scrub(self) -> bool:
        return await self._run(self._store.scrub)

    async def stats(self) -> Stats:
        return await self._run(self._store.stats)

    async def activity(self, *, days: int = 30) -> dict[date, dict[str, int]]:
        return await self._run(self._store.activity, days=days)

    async def verify(self, progress: Callable[[int], None] | None = None) -> VerifyReport:
        return await self._run(self._store.verify, progress)


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


def open_async(
    location: Path | None = None,
    *,
    key: "Key | bytes | None" = None,
    workspace: str = "default",
    timeout_seconds: float = 30.0,
    max_write_bytes: int = MAX_WRITE_BYTES,
    max_attachment: int = MAX_ATTACHMENT,
    max_conversation_bytes: int | None = None,
    maintenance: bool = True,
    quarantine_days: float | None = None,
    read_only: bool = False,
    create: bool = True,
    sanitiser: "Sanitiser | None" = None,
    vfs: str | None = None,
    clock: Callable[[], int] | None = None,
) -> _Opening:
    """Open a store for async code: `async with hitherto.open_async("chats.db") as store`. See `open`."""
    return _Opening(
        lambda: open_sync(
            location,
            key=key,
            workspace=workspace,
            timeout_seconds=timeout_seconds,
            max_write_bytes=max_write_bytes,
            max_attachment=max_attachment,
            max_conversation_bytes=max_conversation_bytes,
            maintenance=maintenance,
            quarantine_days=quarantine_days,
            read_only=read_only,
            create=create,
            sanitiser=sanitiser,
            vfs=vfs,
            clock=clock,
        )
    )
