"""Sealing: content that nobody reads, moves, swaps or puts back without the key.

From the key of the workspace to a record there are three steps. `docs/envelope.md` has them to the byte:

    key of the workspace            32 bytes, the caller's; known to the store by its id alone
    └─ wrapping key                 HKDF, for this workspace
       └─ data key                  random, one for each conversation, wrapped, in its row's **box**
          ├─ record key             AES-256-GCM: bodies, packs, chunks, descriptions, items, the row's proof
          ├─ name key               HMAC: what stands for a key, a label, a project; names of attachments
          ├─ proof key              the weight of a message in the sum that the proof holds
          └─ commitment             stands beside the wrapped key: it can be no other

Each record is sealed with its **place** as associated data, which is rebuilt from the row that it is read from: the
workspace, the conversation, and every clear column. So a body opens in its own row only, as that row was.

The **proof** of a conversation's row is a record, too. Its place is the whole row, so no column can be changed; its
content is a sum over all messages and packs, so none can be dropped or put back without `verify` noticing.

The box of a row may hold two data keys while a conversation is being re-encrypted: the first one seals, both open, and
each record says which of them (its generation) it was sealed with. In a store that is being sealed or unsealed one of
the two is "none". A plain row, or a plain record, is refused at any other time.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ..backend import ConversationRow, ItemRow, KeyShape, MessageRow, PackRow
from ..errors import Closed, Damaged, InvalidArgument, KeyUnavailable
from . import primitives
from .codec import MODULUS, Codec, Envelope, Fingerprint, Place, Plain, StoredRow

if TYPE_CHECKING:
    from ..keys import Key

VERSION = SUITE = 1
_HEADER = struct.Struct(">BBBI")  # version, suite, flags, generation of the data key
_FIELDS = {"message": 1, "description": 2, "item": 3, "pack": 4, "chunk": 5, "row": 6}
_MESSAGE = struct.Struct(">B16s16sqqqBqqq")  # field, workspace, conversation, number, parent, link, main, seq, …
_ROW = struct.Struct(">qqqqqqqqqqB")
_ID = 16  # bytes
_NONE = -1  # as a number; none of ours is negative
_REMEMBERED = 4096  # data keys
_MOST_SEALS = 1 << 30  # with one key: nonces are random, and must not meet within 2**32

BOX = 1  # the version of a box
NO_KEY, AES = 0, 1
_SLOT = struct.Struct(">BII")  # kind, generation, epoch
_WRAPPED = struct.Struct(">8s32s60s")  # id of the workspace's key, commitment, nonce with the wrapped key and its tag
_USUAL = struct.Struct(">3sII8s32s60s")  # a box with one data key, as nearly all are
_USUAL_START = bytes((BOX, 1, AES))
_USUAL_EPOCH = struct.calcsize(">3sI")  # where the epoch stands in such a box; the id of the key follows

_PURPOSE = b"hitherto/1 "
_PLAIN = Plain()
_PLAIN_NAME = 32  # bytes of the name of a plain attachment


class Slot(Struct, frozen=True):
    """A data key in a box, wrapped; or "none"."""

    kind: int
    generation: int
    epoch: int  # the workspace's generation when it was made
    key_id: bytes = b""
    commitment: bytes = b""
    wrapped: bytes = b""


def read_box(data: bytes) -> tuple[Slot, ...]:
    """The data keys of a row, the one that seals first; a plain row has none."""
    if not data:
        return ()
    if type(data) is bytes and len(data) == _USUAL.size and data.startswith(_USUAL_START):
        _, generation, epoch, key_id, commitment, wrapped_key = _USUAL.unpack(data)
        return (Slot(AES, generation, epoch, key_id, commitment, wrapped_key),)
    slots = []
    try:
        if data[0] != BOX:
            raise Damaged("the box of a conversation's keys has an unknown version")
        at = 2
        for _ in range(data[1]):
            kind, generation, epoch = _SLOT.unpack_from(data, at)
            at += _SLOT.size
            wrapped = ()
            if kind == AES:
                wrapped = _WRAPPED.unpack_from(data, at)
                at += _WRAPPED.size
            elif kind != NO_KEY:
                raise Damaged("the box of a conversation's keys holds one of an unknown kind")
            slots.append(Slot(kind, generation, epoch, *wrapped))
    except (struct.error, IndexError, TypeError):
        raise Damaged("the box of a conversation's keys cannot be read") from None
    if at != len(data) or not any(slot.kind == AES for slot in slots):
        raise Damaged("the box of a conversation's keys cannot be read")
    return tuple(slots)


def write_box(slots: Sequence[Slot]) -> bytes:
    box = bytes((BOX, len(slots)))
    for slot in slots:
        box += _SLOT.pack(slot.kind, slot.generation, slot.epoch)
        if slot.kind == AES:
            box += _WRAPPED.pack(slot.key_id, slot.commitment, slot.wrapped)
    return box


def key_of(row: ConversationRow) -> str:
    """Return the id of the key that the row of a sealed workspace requires."""
    return next(slot.key_id.hex() for slot in read_box(row.data_key) if slot.kind == AES)


class Secret:
    """An unwrapped data key, and the keys derived from it."""

    __slots__ = ("_secret", "cipher", "commitment", "name_key", "proof_key")

    def __init__(self, secret: bytes, workspace: bytes, conversation: bytes) -> None:
        derived = primitives.derive(secret, workspace + conversation, _PURPOSE + b"data key", 4 * primitives.KEY)
        self._secret = bytearray(secret)
        self.cipher = primitives.Cipher(derived[:32])
        self.name_key, self.proof_key, self.commitment = derived[32:64], derived[64:96], derived[96:]

    def __repr__(self) -> str:
        return "<Secret>"

    def wrap(self, cipher: primitives.Cipher, place: bytes) -> bytes:
        return cipher.seal(bytes(self._secret), place)

    def wipe(self) -> None:
        """Overwrite the key. The keys derived from it, and temporary copies, are freed by Python and cannot be
        overwritten here."""
        self._secret[:] = bytes(len(self._secret))


def _slot_place(workspace: bytes, conversation: bytes, slot: Slot) -> bytes:
    return (
        _PURPOSE
        + b"wrapped key"
        + workspace
        + conversation
        + _SLOT.pack(slot.kind, slot.generation, slot.epoch)
        + slot.key_id
        + slot.commitment
    )


class Sealed:
    """The codec of a sealed workspace.

    It has the caller's key, and reads its other state from the workspace's row (`adopt`). If a conversation was created
    or rotated with a newer state, it reads that row again (`reread`), which may replace it by another codec.
    """

    name = "sealed"
    in_clear = False

    def __init__(self, workspace: bytes, key: "Key", reread: Callable[[], Codec], like: "Sealed | None" = None) -> None:
        self._workspace = workspace
        self._reread = reread
        self._wraps: dict[bytes, primitives.Cipher] = {}
        self._secrets: OrderedDict[bytes, Secret] = OrderedDict() if like is None else like._secrets  # by commitment
        self.slots: tuple[Slot, ...] = () if like is None else like.slots
        self._home: SealedEnvelope | None = None
        self._take(key)

    def _take(self, key: "Key") -> None:
        self.key = key
        self.key_id = bytes.fromhex(key.id)
        self._wraps[self.key_id] = primitives.Cipher(self.wrapping_key())

    def wrapping_key(self) -> bytes:
        return self.key._derive(self._workspace, _PURPOSE + b"wrapping key")

    # -- the workspace

    def adopt(self, row: ConversationRow) -> Envelope:
        """Adopt the state of the workspace from its row, and check the key. Raises `KeyUnavailable` for a wrong key."""
        wanted = key_of(row)
        if self.key.id != wanted:
            newer = self.key._again()
            if newer is None or newer.id != wanted:
                raise KeyUnavailable(f"the store is sealed with key {wanted}, not with {self.key.id}")
            self._take(newer)
        self.slots = read_box(row.data_key)
        self._home = self.open_row(row)
        return self._home

    def retire(self, wraps: "dict[bytes, bytes]") -> None:
        """Set the old wrapping keys by id, which conversations that are not rotated yet still need."""
        for key_id in [key_id for key_id in self._wraps if key_id != self.key_id and key_id not in wraps]:
            del self._wraps[key_id]
        for key_id, wrap in wraps.items():
            if key_id not in self._wraps:
                self._wraps[key_id] = primitives.Cipher(wrap)

    @property
    def epoch(self) -> int:
        return self.slots[0].generation if self.slots else 1

    def may_be_plain(self) -> bool:
        """Return True if the workspace is being sealed or unsealed."""
        return any(slot.kind == NO_KEY for slot in self.slots)

    def still(self) -> "Sealed":
        """Return a copy that does not follow changes of the workspace, for a job that works with this state."""
        same = copy(self)
        same._wraps = dict(self._wraps)
        return same

    @property
    def shape(self) -> KeyShape:
        """The shape of the key box of an up-to-date conversation: one data key of this epoch under the workspace's
        current key, or none. Lets backends check what `need` checks."""
        if self.slots[0].kind == NO_KEY:
            return KeyShape(0)
        now = self.epoch.to_bytes(4, "big") + self.key_id
        return KeyShape(_USUAL.size, ((0, _USUAL_START), (_USUAL_EPOCH, now)))

    def need(self, row: ConversationRow) -> Literal["rewrap", "reencrypt"] | None:
        """Return the work that brings this conversation up to date with the workspace's key, or None."""
        slots = read_box(row.data_key)
        if self.slots[0].kind == NO_KEY:
            return "reencrypt" if slots else None
        if len(slots) != 1 or slots[0].epoch != self.epoch:
            return "reencrypt"
        return None if slots[0].key_id == self.key_id else "rewrap"

    # -- data keys

    def new_data_key(self, conversation: bytes) -> bytes:
        if self.slots and self.slots[0].kind == NO_KEY:
            return b""
        return write_box((self.new_slot(conversation, 1),))

    def new_slot(self, conversation: bytes, generation: int, epoch: int | None = None) -> Slot:
        """A fresh data key."""
        secret = Secret(primitives.random_key(), self._workspace, conversation)
        self._remember(secret)
        slot = Slot(AES, generation, self.epoch if epoch is None else epoch)
        return self._wrap_secret(conversation, slot, secret)

    def _wrap_secret(self, conversation: bytes, slot: Slot, secret: Secret) -> Slot:
        bare = Slot(AES, slot.generation, slot.epoch, self.key_id, secret.commitment)
        wrap = self._find_wrap(self.key_id)
        if wrap is None:
            raise AssertionError("the key of now is always known")
        place = _slot_place(self._workspace, conversation, bare)
        return Slot(AES, slot.generation, slot.epoch, self.key_id, secret.commitment, secret.wrap(wrap, place))

    def _find_wrap(self, key_id: bytes) -> primitives.Cipher | None:
        """Return the cipher that wraps data keys for this key id, or None if the key is unknown."""
        if not self._wraps:
            raise Closed("the store was closed meanwhile, and its keys are forgotten")
        return self._wraps.get(key_id)

    def rewrap(self, conversation: bytes, slots: Sequence[Slot]) -> tuple[Slot, ...]:
        """Wrap the data keys with the workspace's current key."""
        return tuple(
            slot
            if slot.kind == NO_KEY or slot.key_id == self.key_id
            else self._wrap_secret(conversation, slot, self._secret(conversation, slot))
            for slot in slots
        )

    def _secret(self, conversation: bytes, slot: Slot) -> Secret:
        known = self._secrets.get(slot.commitment)
        if known is not None:
            return known
        if slot.key_id not in self._wraps or slot.epoch > self.epoch:
            now = self._reread()  # another process or thread may have rotated the key
            if isinstance(now, Sealed) and now is not self:
                return now._secret(conversation, slot)
        wrap = self._find_wrap(slot.key_id)
        if wrap is None:
            raise Damaged("a conversation is sealed with a key that is not its workspace's")
        try:
            opened = wrap.open(slot.wrapped, _slot_place(self._workspace, conversation, slot))
        except primitives.Forged:
            raise Damaged("the key of a conversation does not open: it was changed or moved") from None
        secret = Secret(opened, self._workspace, conversation)
        if not primitives.same(secret.commitment, slot.commitment):
            raise Damaged("the key of a conversation is not the one that it was made with")
        self._remember(secret)
        return secret

    def _remember(self, secret: Secret) -> None:
        self._secrets[secret.commitment] = secret
        if len(self._secrets) > _REMEMBERED:
            self._secrets.popitem(last=False)[1].wipe()  # envelopes keep the keys derived from it

    def worn(self, row: ConversationRow) -> bool:
        """Return True if the data key has sealed so much that it should be replaced. A generous estimate: each message
        counts twice (alone and packed), and each commit twice (the row and its other writes). Attachments hardly count:
        2**30 chunks would be 256 TiB."""
        seals = 2 * row.next_seq + 2 * (row.version - row.created_at)
        return bool(row.data_key) and seals > row.generation * _MOST_SEALS

    def forget(self, row: ConversationRow) -> None:
        """Wipe the keys of a conversation that is gone."""
        with suppress(Damaged):  # a box that cannot be read has no cached key
            for slot in read_box(row.data_key):
                secret = self._secrets.pop(slot.commitment, None)
                if secret is not None:
                    secret.wipe()

    def close(self) -> None:
        """Forget all keys."""
        while self._secrets:
            self._secrets.popitem()[1].wipe()
        self._wraps.clear()

    # -- envelopes

    def envelope(self, row: ConversationRow) -> Envelope:
        slots = read_box(row.data_key)
        if not self._agrees(slots):
            now = self._reread()
            if now is not self:  # this codec was replaced, and a caller still had it
                return now.envelope(row)
            if not self._agrees(slots):
                raise Damaged("a conversation is plain in a sealed store" if not slots else "a conversation is newer")
        return self._open_slots(row, slots) if slots else _PLAIN

    def _agrees(self, slots: Sequence[Slot]) -> bool:
        if not slots:
            return self.may_be_plain()
        epoch = self.epoch
        for slot in slots:  # noqa: SIM110  # a listing waits for this
            if slot.epoch > epoch:
                return False
        return True

    def open_row(self, row: ConversationRow) -> "SealedEnvelope":
        """Return the envelope of a conversation that has keys, after checking its row."""
        return self._open_slots(row, read_box(row.data_key))

    def _open_slots(self, row: ConversationRow, slots: Sequence[Slot]) -> "SealedEnvelope":
        # A box with a single slot never has the kind "none".
        if len(slots) > 1 and self.slots and any(s.kind == NO_KEY for s in slots) and not self.may_be_plain():
            raise Damaged("a conversation may be plain in a sealed store")
        envelope = self.draft(row.id, slots)
        envelope.total(row)
        return envelope

    def first_envelope(self, row: ConversationRow) -> Envelope:
        return self.draft(row.id, read_box(row.data_key)) if row.data_key else _PLAIN

    def draft(self, conversation: bytes, slots: Sequence[Slot]) -> "SealedEnvelope":
        """Return the envelope of a conversation with these keys. Does not check the row."""
        if not any(slot.kind == AES for slot in slots):
            raise Damaged("a conversation has no key")
        keys = [(slot.generation, self._secret(conversation, slot) if slot.kind == AES else None) for slot in slots]
        settled = len(slots) == 1 or len({slot.epoch for slot in slots}) == 1
        return SealedEnvelope(self._workspace, conversation, keys, settled=settled)

    def tag(self, field: str, value: str) -> bytes:
        return self.tags(field, value)[0]

    def tags(self, field: str, value: str) -> list[bytes]:
        if self._home is None:
            raise AssertionError("the workspace's row is adopted before anything is named")
        return self._home.tags(field, value)


class SealedEnvelope:
    """The envelope of one conversation."""

    def __init__(
        self,
        workspace: bytes,
        conversation: bytes,
        keys: "Sequence[tuple[int, Secret | None]]",
        *,
        settled: bool = True,
    ) -> None:
        if len(workspace) != _ID or len(conversation) != _ID:
            raise Damaged("the id of a conversation has the wrong length")
        self.settled = settled
        self._workspace, self._conversation = workspace, conversation
        self._secrets = {generation: secret for generation, secret in keys if secret is not None}
        self.generation, current = keys[0]
        self._header = b"" if current is None else _HEADER.pack(VERSION, SUITE, 0, self.generation)
        self._cipher = None if current is None else current.cipher
        self._may_be_plain = len(self._secrets) < len(keys)
        self.proves = not self._may_be_plain
        self._named = [secret for _, secret in keys]
        first = next(iter(self._secrets))
        self._prover = self._secrets[first]
        self._prover_header = _HEADER.pack(VERSION, SUITE, 0, first)
        self._ends: tuple[bytes | None, bytes | None, object, bytes, bytes] = (None, None, None, b"", b"")
        self._sum: tuple[bytes | None, int] = (None, 0)  # the proof that was made or opened last, and what it holds

    # -- records

    def close(self, place: Place, data: bytes) -> bytes:
        if self._cipher is None:
            return _PLAIN.close(place, data)
        return self._header + self._cipher.seal(data, self._header + self._bytes_of(place))

    def open(self, place: Place, data: bytes) -> bytes:
        return self._open(data, self._bytes_of(place), place)

    def close_message(self, row: MessageRow, data: bytes) -> bytes:
        if self._cipher is None:
            return _PLAIN.close_message(row, data)
        return self._header + self._cipher.seal(data, self._header + self._message_place(row))

    def open_messages(self, rows: Sequence[MessageRow]) -> list[bytes]:
        return [self._open(row.body or b"", self._message_place(row), ("message",)) for row in rows]

    def _open(self, data: bytes, place: bytes, what: Place) -> bytes:
        if type(data) is not bytes:  # a damaged file may give anything
            raise Damaged(f"a stored {what[0]} is no bytes")
        header = data[: _HEADER.size]
        try:
            cipher = self._cipher if header == self._header and self._cipher is not None else self._cipher_of(header)
            return cipher.open(data[_HEADER.size :], header + place)
        except primitives.Forged:
            if self._may_be_plain:
                return _PLAIN.open(what, data)
            raise Damaged(
                f"a stored {what[0]} does not open where it lies: it was changed, moved or put back"
            ) from None

    def _cipher_of(self, header: bytes) -> primitives.Cipher:
        if len(header) < _HEADER.size:
            raise primitives.Forged
        version, suite, flags, generation = _HEADER.unpack(header)
        if (version, suite, flags) != (VERSION, SUITE, 0) or generation not in self._secrets:
            raise primitives.Forged
        return self._secrets[generation].cipher

    def is_current(self, data: bytes) -> bool:
        """Was this sealed with the key that seals now?"""
        if self._cipher is not None:
            return data[: _HEADER.size] == self._header
        return data[: _HEADER.size] not in [_HEADER.pack(VERSION, SUITE, 0, known) for known in self._secrets]

    def is_current_name(self, name: bytes) -> bool:
        """Was this attachment named with the key that seals now?"""
        if self._cipher is None:
            return len(name) == _PLAIN_NAME
        return len(name) == 4 + _PLAIN_NAME and int.from_bytes(name[:4], "big") == self.generation

    # -- places

    def _message_place(self, row: MessageRow) -> bytes:
        parent, link = row.parent, row.link
        try:
            if (parent is not None and parent < 0) or (link is not None and link < 0) or row.main not in (0, 1):
                raise ValueError
            return _MESSAGE.pack(
                1, self._workspace, self._conversation, row.number, _NONE if parent is None else parent,
                _NONE if link is None else link, row.main, row.seq, row.revision, row.created_at,
            ) + row.role.encode()  # fmt: skip
        except (struct.error, AttributeError, TypeError, ValueError):
            raise Damaged("a stored message has columns that cannot be") from None

    def _bytes_of(self, place: Place) -> bytes:
        """Field, workspace, conversation, and what else there is: numbers as they are, bytes behind their length."""
        try:
            parts = [_number(part) if part is None or isinstance(part, int) else _with_size(part) for part in place[2:]]
        except (TypeError, OverflowError):
            raise Damaged(f"a stored {place[0]} has columns that cannot be") from None
        return b"".join((bytes((_FIELDS[str(place[0])],)), self._workspace, self._conversation, *parts))

    def _row_place(self, row: ConversationRow) -> bytes:
        try:
            head, expires_at, tips = row.head, row.expires_at, row.tips
            if (head is not None and head < 0) or (expires_at is not None and expires_at < 0) or row.held not in (0, 1):
                raise ValueError
            known = self._ends
            if known[0] is not row.data_key or known[1] is not row.meta or known[2] != (row.kind, row.key):
                known = self._ends = self._ends_of(row)
            return b"".join(
                (
                    known[3], _with_size(row.token), len(tips).to_bytes(4, "big"), *map(_number, tips),
                    _ROW.pack(
                        row.version, row.generation, _NONE if head is None else head, row.next_seq, row.count,
                        row.size, row.rewrites, row.created_at, row.active_at,
                        _NONE if expires_at is None else expires_at, row.held,
                    ),
                    known[4],
                )
            )  # fmt: skip
        except (struct.error, TypeError, AttributeError, ValueError, OverflowError):
            raise Damaged("the row of a conversation has columns that cannot be") from None

    def _ends_of(self, row: ConversationRow) -> tuple[bytes, bytes, tuple[str, bytes | None], bytes, bytes]:
        """How the place of a row begins and ends: these columns hardly ever change."""
        begins = bytes((_FIELDS["row"],)) + self._workspace + self._conversation + _with_size(row.kind.encode())
        return (
            row.data_key,
            row.meta,
            (row.kind, row.key),
            begins + _with_size(row.key),
            _with_size(row.data_key) + _with_size(row.meta),
        )

    # -- names

    def fingerprint(self, name: bytes | None = None) -> Fingerprint:
        """A name begins with the generation of the key it was made with."""
        if name is None:
            generation = self.generation
        else:
            generation = int.from_bytes(name[:4], "big")
            if len(name) != 4 + _PLAIN_NAME or generation not in self._secrets:
                return _PLAIN.fingerprint()
        secret = self._secrets.get(generation)
        return _PLAIN.fingerprint() if secret is None else _Fingerprint(generation, secret.name_key)

    def tags(self, field: str, value: str) -> list[bytes]:
        try:
            data = field.encode() + b"=" + value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument("the text holds half of a surrogate pair, which is not a character") from None
        return [
            _PLAIN.tag(field, value) if secret is None else primitives.mac(secret.name_key, data)[:16]
            for secret in self._named
        ]

    # -- the proof

    def weigh(self, rows: Iterable[StoredRow]) -> int:
        """A message in a pack has no weight of its own."""
        key, total = self._prover.proof_key, 0
        for row in rows:
            body = row.body
            if body is None:
                continue
            if _HEADER.size <= len(body) and body[:3] == b"\x01\x01\x00":  # sealed: its tag stands for it
                total += primitives.weight(key, body[-primitives.TAG :])
            elif isinstance(row, PackRow):
                place = ("pack", self._conversation, row.first, row.parent, row.count)
                total += primitives.weight(key, self._bytes_of(place) + body)
            elif isinstance(row, ItemRow):
                at = ("item", self._conversation, row.key + row.revision.to_bytes(8, "big"))
                total += primitives.weight(key, self._bytes_of(at) + body)
            else:
                total += primitives.weight(key, self._message_place(row) + body)
        return total

    def total(self, row: ConversationRow) -> int:
        if row.proof is self._sum[0]:
            return self._sum[1]
        header = self._prover_header
        try:
            if row.proof[: _HEADER.size] != header:
                raise primitives.Forged
            opened = self._prover.cipher.open(row.proof[_HEADER.size :], header + self._row_place(row))
        except (primitives.Forged, TypeError):
            raise Damaged("the row of a conversation was changed, moved or put back") from None
        total = int.from_bytes(opened, "big")
        self._sum = row.proof, total
        return total

    def prove(self, row: ConversationRow, total: int) -> bytes:
        header, total = self._prover_header, total % MODULUS
        proof = header + self._prover.cipher.seal(total.to_bytes(16, "big"), header + self._row_place(row))
        self._sum = proof, total
        return proof


class _Fingerprint:
    """Computes the name of an attachment: a keyed MAC of its content."""

    def __init__(self, generation: int, key: bytes) -> None:
        self._prefix = generation.to_bytes(4, "big")
        self._mac = primitives.running_mac(key)
        self._mac.update(b"attachment=")  # no tag begins so

    def update(self, data: bytes, /) -> None:
        self._mac.update(data)

    def digest(self) -> bytes:
        return self._prefix + self._mac.digest()


def _number(part: int | None) -> bytes:
    if part is not None and part < 0:
        raise OverflowError
    return (_NONE if part is None else part).to_bytes(8, "big", signed=True)


def _with_size(part: object) -> bytes:
    if part is None:
        return b"\xff\xff\xff\xff"
    if not isinstance(part, bytes):
        raise TypeError("no bytes")
    return len(part).to_bytes(4, "big") + part
