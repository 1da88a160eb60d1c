"""The conversations that a recorder knows, and the choice of the one that a request belongs to.

The caller may name the conversation: with `into`, with the `conversation` of `record`, or by a session. Otherwise it is
found by the history of the request: by an answer in it that was given in that conversation. The recorder compares with
the conversations that it knows, and with those in the store that began with the same message.
"""

import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias

from ..backend import CHAT, Where
from ..conversation import Conversation
from ..dialects import Dialect
from ..errors import Damaged, InvalidArgument, NotFound
from ..ids import show_conversation_id
from ..model import Setup
from ._closing import OpenRecordings
from ._history_match import History, Step, Tree, last_answer, last_exchanges
from ._into import current_conversation
from ._recorded_conversation import Claim, RecordedConversation
from ._sent_requests import SentRequest, SentRequests

if TYPE_CHECKING:
    from ..store import Store

_MAX_CONVERSATIONS = 256  # of one recorder, that can be continued without a search in the store
_MAX_CANDIDATES = 20  # conversations with the same first message that are compared with a history

_Target: TypeAlias = tuple[RecordedConversation, str | None]  # and the message that a request continues


def session_name(session: str) -> str:
    """The opening under which the conversation of a session is stored."""
    return blake2b(session.encode(), digest_size=16, person=b"session").hexdigest()


class KnownConversations:
    """The conversations that one recorder knows."""

    def __init__(
        self,
        store: "Store",
        dialect: Dialect,
        sent: SentRequests,
        open: OpenRecordings,
        pinned: Conversation | None,
        scope: str = "",
    ) -> None:
        """`pinned` takes all requests that are recorded outside of `into`; `scope` is that of `Recorder`."""
        self._scope = scope
        self._store = store
        self._dialect = dialect
        self._sent = sent
        self._open = open
        self._choosing = threading.Lock()  # held while a conversation is chosen and claimed; taken before `_lock`
        self._lock = threading.Lock()  # of the fields below
        # By conversation and flow; the one that was used last is at the end.
        self._conversations: dict[tuple[str, str | None], RecordedConversation] = {}
        self._latest: RecordedConversation | None = None
        self.open_conversations: set[RecordedConversation] = set()  # always the same set: it outlives the recorder
        # Conversations of other recorders that were compared; the last one is at the end.
        self._candidates: dict[str, RecordedConversation] = {}
        self._sessions: dict[str, RecordedConversation] = {}  # by the caller's own name
        self._follower = pinned
        self._pinned: RecordedConversation | None = None
        if pinned is not None:
            self._pinned = self.look_up(pinned)

    @property
    def latest(self) -> Conversation | None:
        """The conversation that was used last; None before the first message."""
        return None if self._latest is None else self._latest.talk

    @property
    def pending(self) -> int:
        """How many messages are held because they could not be written yet."""
        with self._lock:
            return sum(recorded.pending for recorded in self._conversations.values())

    def write_pending(self) -> None:
        """Write the answers that are held. Raises the current error if that still fails."""
        with self._lock:
            all_pending = [recorded for recorded in self._conversations.values() if recorded.pending]
        for recorded in all_pending:
            with recorded.lock:
                recorded.flush()

    def is_pinned(self, recorded: RecordedConversation) -> bool:
        return recorded is self._pinned

    def look_up(self, talk: Conversation) -> RecordedConversation:
        """The recorded conversation of a handle. It counts as the one that was used last."""
        with self._lock:
            found = self._conversations.get((talk.id, talk.position.label))
        return self.use(found or RecordedConversation(talk, self._dialect))

    def use(self, recorded: RecordedConversation) -> RecordedConversation:
        """Remember a conversation as the one that was used last. If another thread has found the same conversation
        meanwhile, return that thread's."""
        with self._lock:
            name = (recorded.talk.id, recorded.talk.position.label)
            recorded = self._conversations.pop(name, recorded)
            self._conversations[name] = recorded
            self._candidates.pop(recorded.talk.id, None)
            self._latest = recorded
            if not recorded.is_ended:
                self.open_conversations.add(recorded)
                self._open.begin(recorded)
            wanted = (recorded, self._pinned)
            idle = [n for n, other in self._conversations.items() if not other.pending and other not in wanted]
            for old in idle[: max(0, len(self._conversations) - _MAX_CONVERSATIONS)]:
                self._abandon(self._conversations.pop(old))
            return recorded

    def keep(self, recorded: RecordedConversation) -> None:
        """Remember a conversation that holds answers, even if it was forgotten meanwhile."""
        with self._lock:
            self._conversations.setdefault((recorded.talk.id, recorded.talk.position.label), recorded)

    def _abandon(self, recorded: RecordedConversation) -> None:
        """Queue a conversation to be ended later by any recorder, because this thread may be in the middle of a
        write."""
        self._sent.forget(recorded)
        if recorded in self.open_conversations:
            self.open_conversations.discard(recorded)
            self._open.abandon(recorded)

    def forget(self, recorded: RecordedConversation) -> None:
        """Forget a conversation that was purged."""
        with self._lock:
            self._conversations = {name: one for name, one in self._conversations.items() if one is not recorded}
            self._sessions = {name: one for name, one in self._sessions.items() if one is not recorded}
            self._candidates.pop(recorded.talk.id, None)
            self._abandon(recorded)

    def remove_ended(self, recorded: RecordedConversation) -> None:
        with self._lock:
            self.open_conversations.discard(recorded)

    def list_open(self) -> list[RecordedConversation]:
        with self._lock:
            return list(self.open_conversations)

    # -- the conversation that the caller names

    def find_named(self, session: str | None) -> tuple[RecordedConversation | None, Conversation | None]:
        """The conversation that the caller has named for a request, and the handle that moves along."""
        into = current_conversation()
        if into is not None and into.engine is not self._store.engine:
            raise InvalidArgument("the conversation of `into` is in another store than the one that is recorded to")
        if into is not None:
            return self.look_up(into), into
        if self._pinned is not None:
            return self._pinned, self._follower
        if session is None:
            return None, None
        found = self._sessions.get(session)
        if found is None:
            found = next(iter(self._load_openings([session_name(session)])), None)
        return found, None

    def remember_session(self, session: str, recorded: RecordedConversation) -> None:
        with self._lock:
            self._sessions.pop(session, None)
            self._sessions[session] = recorded
            if len(self._sessions) > _MAX_CONVERSATIONS:
                del self._sessions[next(iter(self._sessions))]

    # -- the conversation that a history belongs to

    def opening_of(self, first: Step) -> str:
        """The opening under which a conversation is stored that begins with this message."""
        digest = first.digest.hex()
        return session_name(f"{digest} {self._scope}") if self._scope else digest

    def find(self, history: History, setup: Setup, after: str | None, within: str | None) -> Claim | None:
        """Find and claim the conversation that a history belongs to. None means that it begins a new one."""
        with self._lock:
            ours = list(reversed(self._conversations.values()))
        for recorded in ours:
            if recorded.find_response(after) or recorded.find_response(within):
                return self.claim(recorded, recorded.find_response(after or within))
        if after is not None or within is not None or not history:
            return None
        with self._choosing:
            best = self._find_best(ours, history)
            if not last_answer(history) or (best is not None and self._is_certain(best[0].tree, history)):
                return self._claim_target(best or self._find_repeated(ours, history, setup))
        # Other recorders may have continued or begun it.
        stored = self._load_openings([self.opening_of(step) for step in history[0]])
        with self._choosing:
            best = self._find_best(stored if best is None else [best[0], *stored], history)
            return self._claim_target(best or self._find_repeated(ours, history, setup))

    def claim(self, recorded: RecordedConversation, at: str | None) -> Claim:
        """Claim a message until the request has its place, so that no other request with the same answers takes it."""
        claim = Claim(recorded, at)
        recorded.claims.append(claim)
        return claim

    def _claim_target(self, target: _Target | None) -> Claim | None:
        return None if target is None else self.claim(*target)

    def _is_certain(self, tree: Tree, history: History) -> bool:
        """Has this conversation given all answers of the history, and does nothing continue the last one? If not,
        another recorder may keep the conversation that is meant."""
        return tree.last_answer(history) >= last_answer(history) and tree.is_last_answer_free(history)

    def _find_repeated(self, ours: Sequence[RecordedConversation], history: History, setup: Setup) -> _Target | None:
        """The conversation of ours that began with exactly this history, and was never answered."""
        for recorded in ours:
            if not recorded.tree.may_hold(history[0]):
                continue
            if recorded.opening is not None and recorded.opening.system_prompt == setup.system_prompt:
                found = recorded.tree.follow(history)
                if found.count == len(history) and recorded.is_free(found.at):
                    return recorded, found.at
        return None

    def _find_best(self, candidates: Sequence[RecordedConversation], history: History) -> _Target | None:
        """The conversation that a history continues: the one that has given most of its answers.

        Of several that have given the same answers, one is preferred that has not been continued from there: two users
        may have got the same answers so far.
        """
        if not any(step.is_assistant for ways in history for step in ways):
            return None  # most requests that begin a conversation; there may be hundreds of candidates
        given = [(last, one) for one in candidates if (last := one.tree.last_answer(history))]
        furthest = max((last for last, _ in given), default=0)
        best: tuple[tuple[bool, int], _Target] | None = None
        for recorded in [one for last, one in given if last == furthest]:
            found = recorded.tree.follow(history)
            rank = (recorded.is_free(found.at), found.count)
            best = (rank, (recorded, found.at)) if best is None or rank > best[0] else best
        return None if best is None else best[1]

    def _load_openings(self, openings: Sequence[str]) -> list[RecordedConversation]:
        """The conversations in the store with one of these openings."""
        found: list[RecordedConversation] = []
        for name in [name for opening in openings for name in self._store.engine.codec.tags("opening", opening)]:
            for place in self._store.backend.page(Where(CHAT, (name,)), None, _MAX_CANDIDATES):
                try:
                    found.append(self._load_candidate(show_conversation_id(place.id)))
                except (Damaged, NotFound):
                    continue
        return found

    def _load_candidate(self, id: str) -> RecordedConversation:
        """A conversation to compare with, as it is now. It is cached, so that the next search reads only its new
        messages."""
        with self._lock:
            used = self._conversations.get((id, None))
            found = used or self._candidates.pop(id, None)
        found = found or RecordedConversation(self._store.conversation(id), self._dialect)
        with found.lock:
            found.catch_up()
        with self._lock:
            if used is None:
                self._candidates[id] = found
            if len(self._candidates) > 2 * _MAX_CANDIDATES:
                del self._candidates[next(iter(self._candidates))]
        return found

    # -- the conversation of an earlier request

    def claim_after(self, earlier: SentRequest, rest: History, named: RecordedConversation | None) -> Claim | None:
        """Claim the conversation of an earlier request, if `find_named` or `find` would choose the same one."""
        recorded = earlier.recorded
        if named is not None:
            return self.claim(recorded, None) if named is recorded else None
        with self._choosing:
            at = self._find_free_answer(earlier, rest)
            return None if at is None else self.claim(recorded, at)

    def _find_free_answer(self, earlier: SentRequest, rest: History) -> str | None:
        """The answer that a history continues, if that is certain: it was given right after the earlier request, in no
        other conversation that we know, and nothing continues it."""
        tree, position = earlier.recorded.tree, earlier.position
        with self._lock:
            others = set(self._conversations.values())
        if earlier.recorded not in others or not tree.is_current(position):
            return None
        others.remove(earlier.recorded)
        exchanges = last_exchanges([position.question, *rest]) if others else set()
        if any(recorded.tree.has_exchange(exchanges) for recorded in others):
            return None
        found = tree.follow_on(position, rest)
        return found.at if tree.is_free_after(position, rest, found) else None
