"""The workspace's own row: the seed of message ids, and the codec for content.

The row is a conversation of a kind of its own, made by the process that opens the workspace first. If it is sealed, its
data key is the first one that has to open: the key check, before anything else is read. Everything that depends on the
state of the workspace (which key wraps, which one names) is committed on the condition that this row still stands as it
was read, so a process that has not heard of a rotation cannot write by the old rules.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from .._sealing.codec import Codec, Envelope, Plain, next_row
from ..backend import WORKSPACE, Backend, Batch, Change, ConversationRow, Done
from ..errors import CannotOpen, Damaged, KeyUnavailable, NotSealed
from ..ids import new_conversation_id, new_token
from . import policy_memory
from .bodies import WorkspaceMeta, encode, meta_place, open_workspace
from .committer import Committer
from .retry import retry
from .signals import KeyChanged, RowChanged
from .typed_items import close_item

if TYPE_CHECKING:
    from .._sealing.sealed import Sealed
    from ..keys import Key

_KEY = b"workspace"
_PATIENCE_SECONDS = 2.0

C = TypeVar("C", bound=Codec)


def new_row(codec: Codec, id: bytes, kind: str, key: bytes | None, now: int) -> ConversationRow:
    """The row of a new conversation, without description and proof."""
    return ConversationRow(
        id=id,
        kind=kind,
        key=key,
        version=now,
        token=new_token(),
        generation=1,
        head=None,
        tips=(),
        next_seq=0,
        count=0,
        size=0,
        rewrites=0,
        created_at=now,
        active_at=now,
        expires_at=None,
        held=False,
        data_key=codec.new_data_key(id),
        meta=b"",
        proof=b"",
    )


def add_description(envelope: Envelope, row: ConversationRow, meta: bytes) -> ConversationRow:
    """A new row with its description, proven."""
    row = replace(row, meta=meta)
    return replace(row, proof=envelope.prove(row, 0))


def _rules(meta: WorkspaceMeta) -> tuple[int, bool]:
    """Return the fields that make conversations due."""
    return meta.retention_days, meta.expiring


class KeyState:
    """The keys of the workspace at one moment. A rotation goes by them, and each of its commits requires that they
    still stand. The rest of the description (policies, leases) may change meanwhile.

    It has a codec of its own: that of the workspace learns of other keys whenever any thread looks at the row.
    """

    def __init__(self, space: "Workspace") -> None:
        self._space = space
        with space.lock:
            self._keys = _keys(space.row, space.meta)
            self.codec: Sealed | None = None if space.sealed_codec is None else space.sealed_codec.still()

    def now(self) -> tuple[ConversationRow, WorkspaceMeta, Envelope]:
        """Return the workspace as this store knows it; `KeyChanged` if its keys are known to have changed."""
        space = self._space
        with space.lock:
            if _keys(space.row, space.meta) != self._keys:
                raise KeyChanged
            return space.row, space.meta, space.envelope

    @property
    def require(self) -> tuple[tuple[bytes, bytes], ...]:
        """The condition for a batch that is made with these keys."""
        row = self.now()[0]
        return ((row.id, row.token),)

    def confirm(self) -> None:
        """Read the workspace again after a refused commit. `KeyChanged` if its keys have changed."""
        self._space.refresh()
        self.now()


def _keys(row: ConversationRow, meta: WorkspaceMeta) -> tuple[bytes, dict[bytes, bytes]]:
    return row.data_key, meta.retired


class Workspace:
    """The workspace as this store knows it."""

    row: ConversationRow
    meta: WorkspaceMeta
    envelope: Envelope

    def __init__(
        self, backend: Backend, committer: Committer, clock: Callable[[], int], codec: Codec | None, key: "Key | None"
    ) -> None:
        self._backend, self._committer, self._clock = backend, committer, clock
        self._given = codec
        self.codec: Codec = codec or Plain()
        self._key = key
        self.lock = threading.RLock()
        self._coming: tuple[Key | None, ...] = ()
        self.on_rules_changed: Callable[[], None] = lambda: (
            None
        )  # called when others have changed what sweeps go by, or we have
        retry(self._look_or_make, "the workspace could not be set up")

    def _look_or_make(self) -> None:
        if not self._look():
            if self._backend.kinds() and not self._look():  # and no process made it between the two reads
                hint = "restore the store from a backup"
                raise Damaged("the row that describes the workspace is missing, and there are conversations", hint=hint)
            self._make()
            raise RowChanged

    @property
    def require(self) -> tuple[tuple[bytes, bytes], ...]:
        """The condition for a batch that depends on the state of the workspace."""
        return ((self.row.id, self.row.token),)

    @property
    def standing(self) -> tuple[WorkspaceMeta, tuple[tuple[bytes, bytes], ...]]:
        """The description, and the condition for a batch that depends on it: of one moment."""
        with self.lock:
            return self.meta, self.require

    @property
    def sealed_codec(self) -> "Sealed | None":
        """The codec, if it is the one that seals."""
        return None if self.codec.in_clear or self._given is not None else self.codec  # type: ignore[return-value]

    def become(self, codec: Codec, row: ConversationRow) -> None:
        """Take the state of the workspace that this store has just committed."""
        with self.lock:
            if row.data_key:
                self._adopt(codec, row)
            self.codec = codec
            self._key = None if self.sealed_codec is None else self.sealed_codec.key
            self.take(row)

    def expect(self, *keys: "Key | None") -> None:
        """Accept these keys, or none, in the row from now on: this process, or another one with the same job, is about
        to commit one of them. `refresh` may find it even if this process is interrupted before it knows the outcome."""
        self._coming = keys

    def refresh(self) -> None:
        """Read the row of the workspace again. A rotation changes the key's source (a key file, say) a moment before
        the workspace, so if the two do not fit, read again for a while."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                if not self._look():
                    raise Damaged("the row that describes the workspace is missing")
                return
            except KeyUnavailable:
                key = self._key
                if key is None or not key._can_change() or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)

    def describe(self, make: Callable[[WorkspaceMeta], WorkspaceMeta], *, always: bool = False) -> None:
        """Commit another description of the workspace, made from the one that stands now; `always`, even if nothing
        else is written any more."""

        def change(row: ConversationRow, envelope: Envelope) -> Change | None:
            before = open_workspace(envelope, row)
            meta = make(before)
            if meta == before:
                return None
            after = next_row(envelope, row, meta=envelope.close(meta_place(row.id), encode(meta)))
            return Change(row.id, row.token, after)

        self.refresh()
        self._change(change, always=always)

    def note(self, put: Mapping[bytes, bytes] | None = None, unput: Iterable[bytes] = ()) -> None:
        """Commit notes that belong to the workspace, closed, and let go of others; always, even if nothing else is
        written any more."""

        def change(row: ConversationRow, envelope: Envelope) -> Change:
            items = [close_item(envelope, row.id, key, data) for key, data in (put or {}).items()]
            return Change(row.id, row.token, next_row(envelope, row), put=tuple(items), unput=tuple(unput))

        self._change(change, always=True)

    def _change(self, make: Callable[[ConversationRow, Envelope], Change | None], *, always: bool) -> None:
        """Commit a change of the row, made from the row and its envelope."""

        def attempt() -> None:
            with self.lock:  # of one moment
                row, envelope = self.row, self.envelope
            change = make(row, envelope)
            if change is None:
                return
            if not isinstance(self._committer.write(Batch((change,)), always=always), Done):
                self.refresh()
                raise RowChanged
            with self.lock:
                if change.row is not None and change.row.version > self.row.version:  # else there is a newer row
                    self.take(change.row)

        retry(attempt, "the workspace changes all the time")

    def forget(self, row: ConversationRow) -> None:
        """Forget the key of a conversation that is gone."""
        if self.sealed_codec is not None:
            self.sealed_codec.forget(row)

    def close(self) -> None:
        if self.sealed_codec is not None:
            self.sealed_codec.close()

    def _look(self) -> bool:
        with self.lock:  # or a thread that read earlier could take its row later
            rows = self._backend.lookup(key=(WORKSPACE, _KEY))
            if rows:
                self.take(rows[0])
            return bool(rows)

    def take(self, row: ConversationRow) -> None:
        """Take this row, after the key check."""
        if not row.meta:
            hint = "run the same copy again: it goes on where it was, and opens the store when all is there"
            raise CannotOpen("a copy into this workspace is not finished", hint=hint)
        before = getattr(self, "meta", None)  # which there is none of at the first look
        self.envelope = self._check_key(row)
        self.row, self.meta = row, open_workspace(self.envelope, row)
        if self.sealed_codec is not None:
            self.sealed_codec.retire(self.meta.retired)
        if self.meta.name != self._name():
            hint = "somebody has changed the names of workspaces in the file"
            raise Damaged("the workspace was made under another name", hint=hint)
        if self._backend.info.durable:
            policy_memory.note(self._place, row.version, self.meta.retention_days)
        if before is not None and _rules(before) != _rules(self.meta):
            self.on_rules_changed()

    @property
    def _place(self) -> policy_memory.Place:
        return self._backend.info.location, self._backend.info.workspace

    def check_policy(self) -> None:
        """Raise `Damaged` if the policy is older than one that this process has seen."""
        if policy_memory.is_suspect(self._place):
            what = "the retention policy is older than one that was seen before: the row that has it was put back"
            hint = "nothing was purged; look at the policy, and set the one that is meant with set_retention"
            raise Damaged(what, hint=hint)

    def accept_policy(self) -> None:
        """Note that a caller in this process has set the policy."""
        with self.lock:
            policy_memory.accept(self._place, self.row.version, self.meta.retention_days)

    def _name(self) -> str:
        """Return the name that the workspace was made under, if it is sealed: so it cannot be put in the place of
        another."""
        return "" if self.codec.in_clear else self._backend.info.workspace_name

    def _check_key(self, row: ConversationRow) -> Envelope:
        if self._given is None and row.data_key:
            return self._sealing(row).adopt(row)
        if self._key is not None and self._given is None:
            if None not in self._coming:
                raise NotSealed("a key was given, and the store is plain")
            self._key, self.codec = None, Plain()
        return self.codec.envelope(row)

    def _sealing(self, row: ConversationRow) -> "Sealed":
        """The codec for this row of a sealed workspace."""
        from .._sealing.sealed import key_of  # noqa: PLC0415  # only sealed stores load cryptography

        wanted = key_of(row)
        for key in self._coming:
            if (
                key is not None
                and key.id == wanted
                and (self.sealed_codec is None or self.sealed_codec.key.id != wanted)
            ):
                self._key, self.codec = key, self._adopt(self.new_codec(key, like=self.sealed_codec), row)
        if self.sealed_codec is None:
            if self._key is None:
                raise KeyUnavailable("the store is sealed, and no key was given")
            self.codec = self._adopt(self.new_codec(self._key), row)
        sealed = self.sealed_codec
        if sealed is None:
            raise AssertionError("it has just been made")
        return sealed

    def _adopt(self, codec: C, row: ConversationRow) -> C:
        """Let a codec adopt the row before other threads see it: they take it without a lock, and one that has adopted
        no row cannot name anything."""
        if not codec.in_clear and self._given is None:
            codec.adopt(row)  # type: ignore[attr-defined]  # as in `sealed_codec`
        return codec

    def new_codec(self, key: "Key", like: "Sealed | None" = None) -> "Sealed":
        """A codec that seals with this key; `like` another one, whose state it takes over."""
        from .._sealing.sealed import Sealed  # noqa: PLC0415  # only sealed stores load cryptography

        return Sealed(self._backend.info.workspace, key, self._refresh_codec, like)

    def _refresh_codec(self) -> Codec:
        """Read the row again and return the codec."""
        self.refresh()
        return self.codec

    def _make(self) -> None:
        if self._key is not None and self._given is None:
            self.codec = self.new_codec(self._key)
        row = new_row(self.codec, new_conversation_id(), WORKSPACE, _KEY, self._clock())
        envelope = self.codec.first_envelope(row)
        fresh = WorkspaceMeta(os.urandom(16), name=self._name(), has_metadata_tags=True)
        meta = envelope.close(meta_place(row.id), encode(fresh))
        self._committer.write(Batch((Change(row.id, None, add_description(envelope, row, meta)),)))
