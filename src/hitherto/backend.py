"""The backend protocol: rows, and the few verbs over them.

A backend keeps rows whose bodies are opaque bytes. It decides nothing: heads, sequence, numbers, conflicts, sealing,
limits and retention are the store's. Its contract is small and exact:

- **Every write to a conversation gives its row a new token**, 16 random bytes, and raises its version. The token is
  the only compare-and-swap: the store prepares a `Change` from the row it last saw and names that row's token; the
  backend applies it if the token still stands, and otherwise answers `Stale` with the row as it is now. (The
  version alone would not do: the store prepares from rows it *expects* to have written, and another process may
  reach the same version with another row.)
- **`commit` applies many batches in one transaction with one sync.** A batch is all or nothing; batch *i* failing
  does not disturb the others; later batches see what earlier ones did. When `commit` returns, everything it calls
  `Done` survives a power cut. Outcomes are values. Only infrastructure raises: `CommitUnknown` if the transaction may
  or may not have been kept, any other `StorageError` if it certainly was not. After `CommitUnknown` it may even be
  under way still: a later `commit` to the same rows waits for it, a read does not. `commit([])` waits until all that
  can be read is durable.
- **A batch may require something of every conversation** (`every_key`). It is checked in the batch's own transaction,
  after the rows that the batch names are locked. So if every batch that gives a conversation another `data_key`
  requires the workspace's row, as the store's batches do, and this batch changes that row, then the answer holds until
  the commit. This is how the store knows that no row needs a key any more before it forgets the key. The answer is
  `Stale` with one conversation that does not fit.
- **A backend on which writers meet may let them queue** (`info.can_queue`). Then it has a second verb,
  `commit_queued`. It locks a row that has moved, has the batch prepared anew from it, and commits while the lock keeps
  other writers away. A writer that loses a race waits once instead of racing again.
- **The backend retries**: every verb waits for transient errors up to its timeout before it raises.
- **Reads see every commit that was acknowledged before they began.** Iterators hold no transaction between the lists
  they yield, so an abandoned one pins nothing.
- **A pack** holds the bodies of the first messages of a run as one opaque body, closed and opened by the store. Packing
  changes where bodies lie, nothing else: headers stay per message. A run is packed from its first message on, and
  because messages are deleted with all that stand below them, what is left of a run always begins with its first.
- **Attachments** are staged in chunks before the message that refers to them is committed; the commit adopts them, or
  answers `Missing`. The last reference that goes takes the attachment along; what was never adopted is collected.
- **Numbers** are unique in the workspace and never used again. `edge` is above every number that was ever used. A run
  that begins below a number that was dropped counts as used, because another process may use a number and purge it
  between a read of `edge` and the commit. Batches with `is_copy` are exempt. A message whose number is not the first of
  its run (`ids.RUN`) has the number before it as its parent; backends may lay rows out accordingly.

A backend object is bound to one workspace, may be used from any thread, and does not survive `os.fork`. `info`
declares how backends differ; the store never finds a difference by trying.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from .textindex import TextIndex

CHAT = "chat"  # the kind of conversation that listings show
WORKSPACE = "workspace"  # the kind of the one row that describes the workspace itself
ITEMS = "items"  # the kind of the one row that the items of the workspace belong to
ERASED = "erased"  # the kind of the rows that are entries of the erasure ledger
INTERNAL_KINDS = frozenset((WORKSPACE, ITEMS, ERASED))  # all other kinds are conversations


class ConversationRow(Struct, frozen=True, gc=False):
    """A conversation: the unit of locking, of sealing and of erasure. Its id, kind and created_at never change, its key
    only where a change says so."""

    id: bytes
    kind: str
    key: bytes | None  # the caller's own name for it, unique per kind
    version: int  # raised by every commit; begins at the time of creation, so a reused id has other versions
    token: bytes  # of the last write; a change names it
    generation: int  # of the data key
    head: int | None  # the message that resume continues
    tips: tuple[int, ...]  # the last number in each run (up to 32 messages on one branch) that may grow, newest first
    next_seq: int
    count: int
    size: int
    rewrites: int  # commits that dropped or changed messages: if it is equal, no message has changed
    created_at: int  # microseconds
    active_at: int  # of the newest message or item of a user; nothing else moves it
    expires_at: int | None
    held: bool
    data_key: bytes  # the key of the content, closed; opaque, like the next two
    meta: bytes  # the description (title, project, metadata, …), closed
    proof: bytes  # a checksum over the row and its messages, in a sealed store


class MessageRow(Struct, frozen=True, gc=False):
    """A message: its place in clear, its content as one opaque body."""

    number: int
    conversation: bytes
    seq: int
    parent: int | None
    link: int | None  # on a root: the message that it continues (main) or serves (not main)
    main: bool  # on the main flow
    role: str
    revision: int
    created_at: int
    body: bytes | None  # None where headers only were asked for, and where a pack holds it
    key: bytes | None = None  # the caller's own name for the message, unique in its conversation
    token: bytes = b""  # of the write that added it
    size: int = 0  # of the content, before the codec


class PackRow(Struct, frozen=True, gc=False):
    """The bodies of the first messages of a run, as one. Their rows stay, without bodies."""

    first: int  # the first number of the run
    conversation: bytes
    parent: int | None  # of the first message
    count: int  # how many messages
    body: bytes


class AttachmentRow(Struct, frozen=True, gc=False):
    """Large content beside the messages of a conversation, in chunks."""

    name: bytes  # from its content
    chunks: int  # 0 until all of them are staged
    staged_at: int  # microseconds
    messages: tuple[int, ...]  # that refer to it


class ItemRow(Struct, frozen=True, gc=False):
    """A small piece of state that belongs to a conversation, ordered by key."""

    conversation: bytes
    key: bytes  # unique in the conversation; it begins with the prefix of its type, such as `setup/`
    revision: int  # of an item of a user; else 0
    body: bytes


class Tag(Struct, frozen=True, gc=False):
    """An equality index: this conversation, or this message of it, has that value."""

    value: bytes
    message: int | None = None


class Change(Struct, frozen=True, gc=False):
    """The changes of one batch to one conversation."""

    conversation: bytes
    expect: bytes | None  # the token of the row it was prepared from; None: the conversation must not exist
    row: ConversationRow | None  # the row afterwards; None: remove the conversation and all it owns
    add: tuple[MessageRow, ...] = ()
    amend: tuple[MessageRow, ...] = ()  # replace the row of that number; its references to attachments stay
    drop: tuple[int, ...] = ()  # and the tags of these messages, and attachments that no other refers to
    pack: tuple[PackRow, ...] = ()  # put these packs, over older ones; the messages in them lose their own bodies
    unpack: tuple[int, ...] = ()  # remove the packs of these runs
    attach: tuple[tuple[int, bytes], ...] = ()  # a message refers to an attachment, which must be complete
    detach: tuple[tuple[int, bytes], ...] = ()  # a message does not refer to it any more; the last one takes it along
    put: tuple[ItemRow, ...] = ()
    unput: tuple[bytes, ...] = ()
    tag: tuple[Tag, ...] = ()
    untag: tuple[Tag, ...] = ()
    rekey: bool = False  # the key in `row` is another one than before


class KeyShape(Struct, frozen=True):
    """The form of a `data_key`: so many bytes, and these bytes at these offsets. Backends compare the bytes and do not
    know their meaning."""

    length: int
    parts: tuple[tuple[int, bytes], ...] = ()

    def fits(self, data_key: bytes) -> bool:
        return len(data_key) == self.length and all(
            data_key[offset : offset + len(part)] == part for offset, part in self.parts
        )


class Batch(Struct, frozen=True, gc=False):
    """Changes that happen together or not at all: at most one of each conversation, and no name twice, which backends
    need not check."""

    changes: tuple[Change, ...]
    require: tuple[tuple[bytes, bytes], ...] = ()  # conversations whose token must be this until the commit is done
    # Its messages come with their numbers from another copy: numbers that were dropped here may be used again.
    is_copy: bool = False
    # The form of the `data_key` of every conversation, except the workspace's own row.
    every_key: KeyShape | None = None


def removes(batch: Batch) -> bool:
    """Does the batch only make the store smaller? The rows that it amends or packs anew are smaller than before. Beside
    each conversation that it removes it may write a bare row, which notes that."""
    gone = sum(change.row is None for change in batch.changes)
    more = [change for change in batch.changes if change.row is not None and not _is_smaller(change)]
    return len(more) <= gone and not any(c.add or c.attach or c.put or c.pack or c.tag for c in more)


def _is_smaller(change: Change) -> bool:
    return bool(change.drop or change.unput or change.detach) and not (change.add or change.attach)


class Done(Struct, frozen=True):
    """The batch is committed."""


class Stale(Struct, frozen=True):
    """The token has changed, or a `data_key` does not fit. `row` is the current row of the conversation; None if it
    does not exist."""

    conversation: bytes
    row: ConversationRow | None


class Taken(Struct, frozen=True):
    """A name is in use: the conversation's `id` or `key`, a message's `number` or `message key`."""

    what: str
    conversation: bytes


class Missing(Struct, frozen=True):
    """An attachment that a message was to refer to is not there, or not complete."""

    conversation: bytes
    attachment: bytes


Outcome = Done | Stale | Taken | Missing
DONE = Done()

# Prepares the batches at these places, which all change one conversation, anew from its current row: each from the row
# that the batch before leaves. None for a batch that cannot be prepared anew; its outcome is `Stale`.
Rebase = Callable[[ConversationRow, Sequence[int]], Sequence[Batch | None]]


class Where(Struct, frozen=True):
    """The conversations of a listing."""

    kind: str = CHAT
    tags: tuple[bytes, ...] = ()  # it has all of these
    alive_at: int | None = None  # leave out those that expired by then, unless they are on hold
    expired_at: int | None = None  # leave out all but those that expired by then
    key_prefix: bytes | None = None  # leave out all but those whose key begins with this


class UnpackedRun(Struct, frozen=True, gc=False):
    """A run with bodies outside a pack."""

    first: int
    conversation: bytes


class Changes(Struct, frozen=True):
    """The conversations that changed since a position in the feed."""

    position: bytes  # for the next call
    everything: bool  # the position of the call is unknown: all conversations may have changed
    moved: list[bytes]
    gone: list[bytes]


class Position(Struct, frozen=True, array_like=True):
    """A place in a listing of conversations, by last activity and id. It outlives the conversation it was taken
    from."""

    at: int
    id: bytes


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key after all keys that begin with `prefix`, or None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


class Info(Struct, frozen=True):
    """The properties of a backend."""

    name: str
    workspace: bytes  # 16 random bytes
    location: str  # for output; it holds no secrets
    durable: bool  # acknowledged writes outlive the process
    can_backup: bool = False
    workspace_name: str = ""  # the name of the workspace
    distant: bool = False  # the network takes longer than the query: callers send several queries at once
    can_queue: bool = False  # it is a `QueueingBackend`


class Disk(Struct, frozen=True):
    """The free and the total space of a disk, in bytes."""

    free: int
    total: int
    reserve: bool = True  # a reserve is set aside, so that a purge works on a full disk


class Totals(Struct, frozen=True):
    """The sums over all conversations of one kind."""

    conversations: int = 0
    messages: int = 0
    size: int = 0
    oldest: int | None = None  # the first created_at
    newest: int | None = None  # the last active_at


class Lifetime(Struct, frozen=True, gc=False):
    """The facts about a conversation that retention needs."""

    id: bytes
    active_at: int
    expires_at: int | None
    held: bool


class DayCount(Struct, frozen=True):
    """The number of messages of a role on one day."""

    day: int
    role: str
    count: int


class Backend(Protocol):
    """Rows of one workspace. See the module for the contract."""

    @property
    def info(self) -> Info: ...

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply the batches in one transaction; one outcome each, in order."""

    def lookup(
        self,
        *,
        ids: Sequence[bytes] = (),
        prefix: str | None = None,
        key: tuple[str, bytes] | None = None,
        limit: int = 10,
    ) -> list[ConversationRow]:
        """Conversations by id, by the beginning of the hexadecimal id (at most `limit`), or by (kind, key).
        Missing ones are left out."""

    def page(self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False) -> list[Position]:
        """The positions of conversations in a listing: by (active_at, id), newest first, strictly after the position;
        or by (created_at, id), oldest first. `lookup` gets their rows."""

    def count(self, where: Where) -> int:
        """The number of conversations that `page` lists in all."""

    def totals(self, kind: str) -> Totals:
        """All conversations of this kind, summed up."""

    def lifetimes(self, kind: str) -> Iterator[list[Lifetime]]:
        """All conversations of this kind, in lists, in no particular order."""

    def said(self, kind: str, since: int, day: int) -> list[DayCount]:
        """The messages that were created at `since` or later in conversations of this kind, counted by day and role, in
        no particular order. A day has `day` microseconds. Times never fall along a conversation."""

    def messages(
        self, *, numbers: Sequence[int] = (), keys: tuple[bytes, Sequence[bytes]] | None = None, bodies: bool = True
    ) -> list[MessageRow]:
        """Messages by number, or by key within a conversation, in no particular order. Missing ones are left out."""

    def packs(self, runs: Sequence[int]) -> list[PackRow]:
        """The packs of these runs, by their first numbers. Missing ones are left out."""

    def loose(self, *, full: bool, after: int = -1, limit: int) -> list[UnpackedRun]:
        """Runs whose last message has a body of its own (`full`), or whose first one has: by number, after `after`."""

    def path(self, number: int) -> Iterator[list[MessageRow] | PackRow]:
        """The way from a message up to its root, in pieces of one run each. Later pieces are nearer to the root; in a
        piece, the message nearest to the root comes first. A pack is yielded whole, also if it holds messages that are
        not on the way. Stops early where a parent is missing; yields nothing if the message is missing. These rows are
        for reading: `token`, `key` and `size` are left empty."""

    def root(self, number: int) -> int | None:
        """The message at the other end of that way, found from run to run. None if the message is missing, or the first
        one of a run on the way."""

    def scan(
        self,
        conversation: bytes,
        *,
        after: int | None = None,
        newest_first: bool = False,
        limit: int,
        bodies: bool = True,
    ) -> list[MessageRow]:
        """Messages of a conversation by sequence, strictly after `after`."""

    def kinds(self) -> list[str]:
        """The kinds of conversation there are."""

    def edge(self) -> int:
        """The first number of a run above every number that was ever used."""

    def numbers(self) -> Iterator[list[int]]:
        """Every message number in use, in lists, in no particular order."""

    def tagged(self, value: bytes) -> list[tuple[bytes, int | None]]:
        """Conversation and message of everything that has this tag, in order of conversation id and number."""

    def tags(self, conversation: bytes, *, after: Tag | None = None, limit: int) -> list[Tag]:
        """The tags of a conversation, its own first, then those of its messages by number; by value among those of
        one: strictly after `after`."""

    def items(
        self,
        conversation: bytes,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[ItemRow]:
        """Items whose key begins with `prefix`, by key; with `after`, those that come after that key in this order."""

    def stage(
        self, conversation: bytes, attachment: bytes, start: int, chunks: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        """Keep some chunks of an attachment, numbered from `start`; `last`: there are no more. Commits alone. Staging a
        chunk again replaces it, until the attachment is complete. The conversation may not exist yet."""

    def chunks(self, conversation: bytes, attachment: bytes, start: int = 0) -> Iterator[bytes]:
        """The chunks of an attachment in order. Stops early where one is missing."""

    def attachments(self, conversation: bytes, names: Sequence[bytes] | None = None) -> list[AttachmentRow]:
        """The attachments of a conversation, or those of these names, in order of their names."""

    def attached(self, conversation: bytes) -> int:
        """How many bytes the attachments of a conversation have as they are kept, adopted or not. Reads none of
        them."""

    def unstage(self, conversation: bytes, names: Sequence[bytes]) -> None:
        """Remove these attachments, as far as no message refers to them."""

    def collect(self, before: int) -> int:
        """Remove attachments that no message refers to and that were staged before then; how many."""

    def changes(self, since: bytes | None) -> Changes:
        """The conversations that were changed after the call that returned the position `since`.

        Conversations may be repeated, but none is missed: neither clocks nor the order of commits matter. Very old
        positions, and those of another copy of the store, are unknown. A reader stores the position together with the
        data that it derived.
        """

    def text_index(self, *, create: bool) -> "TextIndex | None":
        """The index beside the rows, for words in clear. `create` makes one. None if there is none; without a place for
        one, the store keeps it in memory."""

    def maintain(self, seconds: float) -> bool:
        """Give free space back and keep reading fast, for about so long. False if there is more to do."""

    def backup(self, path: str) -> None:
        """Write a copy to a new file: all commits before the call, and no commit in part. Other threads go on
        meanwhile. Only if `info.can_backup`."""

    def check(self) -> list[str]:
        """The problems of the storage itself, in words; empty if there are none."""

    def scrub(self) -> bool:
        """Take deleted bytes out of the files. False if a reader delays it: call again later."""

    def is_scrubbed(self) -> bool:
        """Are all deleted bytes, also those of other processes, removed as far as `scrub` can remove them?"""

    def size(self) -> int:
        """About how many bytes it takes, on disk or in memory."""

    def used(self) -> int:
        """How many bytes the messages of this workspace have (`size` of its conversations), and its attachments as they
        are kept, adopted or not. Reads every conversation's row."""

    def disk(self) -> Disk | None:
        """The disk of the store; None if it is unknown. On a full disk every write raises `StorageFull`, except one
        that only removes."""

    def close(self, *, untouched: bool = False) -> None:
        """Release all resources. Idempotent. `untouched`: opening failed, so closing must change nothing."""


class QueueingBackend(Backend, Protocol):
    """A backend whose writers wait for each other instead of racing (`info.can_queue`)."""

    def commit_queued(self, batches: Sequence[Batch], rebase: Rebase) -> list[Outcome]:
        """Commit like `commit`, but lock the rows of batches that are stale and have `rebase` make these anew.

        `rebase` is called in the calling thread, at least once for each conversation that has moved, with its row as it
        is, and with the places of the first batch that is stale and of all that follow it: batches of one conversation
        are kept in their order. The lock keeps other writers away from that row until the commit. If `rebase` reads
        from this backend in that thread, it sees the same row; it must not write. It is called again if the transaction
        is retried; the batches of the earlier call were not committed then.
        """


def conversation_kinds(backend: Backend) -> list[str]:
    """Return the kinds of conversations that the workspace has."""
    return [kind for kind in backend.kinds() if kind not in INTERNAL_KINDS]
