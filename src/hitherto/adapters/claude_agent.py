"""A session store for the Claude Agent SDK: `ClaudeAgentOptions(session_store=SessionStore(store))`.

A session is a conversation. Each entry of the transcript is a message of it: what the user, Claude and the tools say as
what it is, everything else (titles, modes, attachments, system notes) as an event, which no thread shows. So entries
keep their order, and the store gives them back equal.

Entries name their parent by `parentUuid`. Those of one turn follow each other here, also if they answer several tool
calls at once; a parent in an earlier turn begins a branch there. The transcript of a sub-agent is a trace of the same
conversation (docs/data-model.md), so deleting a session takes all of it in one step.

The summary that the SDK makes of a session is an item of the conversation. It changes in the commit
of the entries that it sums up, and a writer who was slower begins again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Struct

from ..aio import AsyncStore
from ..conversation import Conversation
from ..dialects._framework_names import escape, key_of, unescape
from ..dialects._kept_objects import Whole as Entry
from ..dialects._kept_objects import first_words
from ..errors import Busy, Conflict, HithertoError, InvalidArgument, NotFound
from ..listing import ConversationInfo
from ..model import Message, Saved, Usage
from ..store import Store
from ._claude_entries import ENTRIES, EntryReader, begins_turn, parent_of, title_of, uuid_of
from ._opening import Location, describe, import_framework, open_any

__all__ = ["SessionStore"]

_TRIED = ">=0.2.180,<0.3"
_FRAMEWORK = "claude-agent-sdk"
_STATE = "claude-agent"  # the item with the state of a session
_TRANSCRIPTS = "claude-agent/transcripts/"  # and the subpath of a sub-agent
_PAGE = 1000  # sessions that are listed at a time
_LARGEST_COMMIT = 5_000_000  # bytes of entries, about
_MOST_TRIES = 1000
_UNSAVED = 1 << 62  # the place of an entry that is not saved yet comes after that of all others

T = TypeVar("T")


class _State(Struct, omit_defaults=True):
    """The state of a session, for the next append."""

    summary: dict[str, object] | None = None  # the SDK's own; not to be looked into
    turn: str | None = None  # the uuid of the entry with which the current turn, or branch, began
    answer: str | None = None  # the id of the last answer of the model,
    counted: tuple[int, ...] = ()  # and what of its tokens is counted: several entries tell of one answer
    is_titled: bool = False  # by a human, as opposed to the model or the first words


class _Transcript(Struct, frozen=True):
    """A transcript, as the SDK names it."""

    project: str
    session: str
    subpath: str = ""

    @classmethod
    def of(cls, key: Mapping[str, str]) -> "_Transcript":
        try:
            found = cls(key["project_key"], key["session_id"], key.get("subpath", ""))
        except (TypeError, KeyError, AttributeError):
            found = cls("", "")
        if (
            not all(isinstance(part, str) for part in (found.project, found.session, found.subpath))
            or not found.session
        ):
            raise InvalidArgument("a transcript is named by project_key and session_id, and perhaps a subpath")
        return found

    @property
    def key(self) -> str:
        return key_of("claude-agent", self.project, self.session)

    @property
    def metadata(self) -> dict[str, str]:
        names = {"project_key": escape(self.project), "session_id": escape(self.session)}
        return {"framework": _FRAMEWORK, **names}

    @property
    def run(self) -> tuple[str, str]:
        """The name and the run of the sub-agent: the folder of the subpath, and what is in it."""
        folder, _, name = self.subpath.rpartition("/")
        return escape(folder).replace(":", "%3A") or "%", escape(name).replace(":", "%3A") or "%"

    @property
    def item(self) -> str:
        return _TRANSCRIPTS + escape(self.subpath)


class SessionStore:
    """Sessions of the Claude Agent SDK, kept in hitherto. All methods of its protocol are here."""

    def __init__(self, store: Store | AsyncStore | Location) -> None:
        sdk = import_framework("claude_agent_sdk", _FRAMEWORK, "claude-agent", _TRIED, "fold_session_summary")
        self._fold = sdk.fold_session_summary
        self._threads = import_framework("anyio.to_thread", "anyio", "claude-agent", ">=4")
        self.store = open_any(store)

    def __repr__(self) -> str:
        return f"<SessionStore on {self.store!r}>"

    async def _run(self, work: Callable[..., T], *given: object) -> T:
        """Run the work in a thread, beneath asyncio or trio. A task that is cancelled waits for its end."""
        return await self._threads.run_sync(work, *given)

    # -- the protocol of the SDK

    async def append(self, key: Mapping[str, str], entries: Sequence[Entry]) -> None:
        """Keep entries of a transcript. One whose uuid is there already is passed over."""
        for entry in entries:
            if not isinstance(entry, Mapping):
                raise InvalidArgument(f"an entry of a transcript is a JSON object, not a {type(entry).__name__}")
        if not entries:
            return
        try:
            await self._run(self._append, _Transcript.of(key), list(entries))
        except HithertoError as error:
            error.args = (describe(error),)  # the SDK passes on the text alone
            raise

    async def load(self, key: Mapping[str, str]) -> list[Entry] | None:
        """Return the entries of a transcript in their order; None if there are none."""
        return await self._run(self._load, _Transcript.of(key))

    async def list_sessions(self, project_key: str) -> list[dict[str, object]]:
        """Return the id of each session and when it changed, in milliseconds."""
        return await self._run(lambda: [_listed(info) for info in self._sessions(project_key)])

    async def list_session_summaries(self, project_key: str) -> list[dict[str, object]]:
        """Return what the SDK has summed up of each session."""
        return await self._run(lambda: list(self._summaries(project_key)))

    async def delete(self, key: Mapping[str, str]) -> None:
        """Delete a session with the transcripts of its sub-agents, or one of these. No file keeps any of it."""
        await self._run(self._delete, _Transcript.of(key))

    async def list_subkeys(self, key: Mapping[str, str]) -> list[str]:
        """Return the subpaths of the sub-agents' transcripts."""
        return await self._run(self._subkeys, _Transcript.of(key))

    # -- writing

    def _append(self, transcript: _Transcript, entries: Sequence[Entry]) -> None:
        write = self._add_to_trace if transcript.subpath else self._add_to_session
        left = entries
        for _ in range(_MOST_TRIES):
            talk = self.store.find(transcript.key)
            if talk is None:
                for entry in entries:
                    EntryReader().read(entry, None)  # raises an error before a conversation is made for nothing
                talk = self.store.ensure(transcript.key, metadata=transcript.metadata)
            try:
                left = write(talk, transcript, left)
            except Conflict:  # another writer was faster
                continue
            if not left:
                return
        raise Busy("the session is written to by others all the time")

    def _add_to_session(self, talk: Conversation, transcript: _Transcript, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Commit as many entries as follow each other on one branch, and return the rest."""
        item = talk.items.get(_STATE)
        state = _State() if item is None else msgspec.json.decode(item.value, type=_State)
        named = [state.turn, *(name for entry in entries for name in (uuid_of(entry), parent_of(entry)))]
        there = {message.key: message for message in talk.get(keys={n for n in named if n}, missing_ok=True)}
        order = {uuid: message.seq for uuid, message in there.items() if uuid}
        reader = EntryReader(state.answer, Usage(*state.counted))
        new: list[Entry] = []
        messages: list[Message] = []
        size, done = 0, 0
        title: str | None = None
        for entry in entries:
            uuid, parent = uuid_of(entry), parent_of(entry)
            if uuid in order:
                done += 1
                continue
            message, bytes_ = reader.read(entry, uuid)
            is_turn = begins_turn(entry, message)
            at_root = is_turn and parent is None and state.turn is not None and "parentUuid" in entry
            is_branch = at_root or order.get(parent or "", _UNSAVED) < order.get(state.turn or "", -1)
            if messages and (is_branch or size + bytes_ > _LARGEST_COMMIT):
                break
            if is_branch:
                talk = talk.fork(before=self._root(talk)) if at_root else talk.fork(at=there[parent])
            if uuid is not None:
                order[uuid] = _UNSAVED + done
                state.turn = uuid if is_turn or is_branch else state.turn
            given = title_of(entry)
            if given is not None and (given[1] or not state.is_titled):
                title, state.is_titled = given
            elif is_turn and not talk.title:
                title = title or first_words(message.text)
            new.append(entry)
            messages.append(message)
            size, done = size + bytes_, done + 1
        if messages:
            names = {"project_key": transcript.project, "session_id": transcript.session}
            before = None
            if state.summary is not None:
                before = {"session_id": transcript.session, "mtime": 0, "data": state.summary}
            state.summary = self._fold(before, names, new)["data"]
            state.answer, state.counted = reader.answer, msgspec.structs.astuple(reader.counted)
            with talk.batch() as batch:
                batch.extend(messages)
                batch.items.put(_STATE, msgspec.json.encode(state), expect=None if item is None else item.revision)
        if title is not None and title != talk.title:
            talk.rename(title)
        return entries[done:]

    def _root(self, talk: Conversation) -> Saved:
        return next(m for m in self.store.messages(conversation=talk, newest_first=False) if m.main)

    def _add_to_trace(self, talk: Conversation, transcript: _Transcript, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Commit entries of a sub-agent. Their keys are apart from those of the session."""
        last = next(iter(self._trace(talk, transcript, newest_first=True)), None)
        flow = talk.subagent(*transcript.run) if last is None else talk.fork(at=last)
        keys = [None if (uuid := uuid_of(entry)) is None else f"{transcript.subpath}\n{uuid}" for entry in entries]
        seen = {message.key for message in talk.get(keys={key for key in keys if key}, missing_ok=True)}
        reader = EntryReader()
        with flow.batch() as batch:
            for entry, key in zip(entries, keys, strict=True):
                if key is None or key not in seen:
                    batch.append(reader.read(entry, key)[0])
                    seen.add(key)
            batch.items.put(transcript.item, b"")
        return ()

    def _delete(self, transcript: _Transcript) -> None:
        talk = self.store.find(transcript.key)
        if talk is None:
            return
        if not transcript.subpath:
            self.store.purge(talk, reason="user-requested")
            return
        ids = [message.id for message in self._trace(talk, transcript, newest_first=False)]
        self.store.delete(ids, recursive=True, missing_ok=True)
        talk.items.delete(transcript.item, missing_ok=True)

    # -- reading

    def _trace(self, talk: Conversation, transcript: _Transcript, *, newest_first: bool) -> Iterable[Saved]:
        label = ":".join(("subagent", *transcript.run))
        return self.store.messages(conversation=talk, label=label, newest_first=newest_first)

    def _load(self, transcript: _Transcript) -> list[Entry] | None:
        talk = self.store.find(transcript.key)
        if talk is None:
            return None
        if transcript.subpath:
            messages = self._trace(talk, transcript, newest_first=False)
        else:
            said = self.store.messages(conversation=talk, newest_first=False)
            messages = (message for message in said if message.main)
        return [entry for message in messages if (entry := ENTRIES.whole(message)) is not None] or None

    def _sessions(self, project_key: str) -> Iterator[ConversationInfo]:
        wanted = {"framework": _FRAMEWORK, "project_key": escape(project_key)}
        cursor: str | None = None
        while True:
            page = self.store.conversations(limit=_PAGE, cursor=cursor, metadata=wanted)
            yield from (info for info in page.items if info.head is not None)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _summaries(self, project_key: str) -> Iterator[dict[str, object]]:
        for info in self._sessions(project_key):
            try:
                item = self.store.conversation(info).items.get(_STATE)
            except NotFound:  # deleted since it was listed
                continue
            state = None if item is None else msgspec.json.decode(item.value, type=_State)
            if state is not None and state.summary is not None:
                yield {**_listed(info), "data": state.summary}

    def _subkeys(self, transcript: _Transcript) -> list[str]:
        talk = self.store.find(transcript.key)
        found = [] if talk is None else talk.items.scan(_TRANSCRIPTS)
        return [unescape(item.name.removeprefix(_TRANSCRIPTS)) for item in found]


def _listed(info: ConversationInfo) -> dict[str, object]:
    return {"session_id": unescape(info.metadata["session_id"]), "mtime": int(info.active_at.timestamp() * 1000)}
