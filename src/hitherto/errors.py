"""The tree of all errors that hitherto raises.

    HithertoError
    ├── NotFound                 no such message or conversation; names what is missing
    ├── Ambiguous                a prefix that fits several; lists the candidates
    ├── AlreadyExists            the id that was asked for is taken
    ├── Conflict                 another writer was faster; carries the current head
    ├── ConversationFull         a write that would make a conversation larger than it may be; nothing was stored
    ├── HasChildren              a message that others answer is not deleted alone
    ├── Held                     a hold forbids deleting
    │   └── BelowFloor           so does the retention floor
    ├── NotExportable            a conversation that must not leave its store
    ├── InvalidArgument          (also a ValueError) the call itself is wrong; nothing was stored
    │   ├── InvalidID            not the shape of an id
    │   ├── InvalidMessage       holds something that cannot be kept as it is
    │   ├── InvalidKey           not 32 bytes
    │   ├── InvalidCursor        a cursor of another list, another store, or not a cursor
    │   ├── InvalidQuery         words to search for that cannot be understood
    │   ├── InvalidBaseURL       an address no credential is sent to; never shows it
    │   ├── InvalidSnapshotID    not the shape of a snapshot's id
    │   ├── PayloadTooLarge      more text and JSON than one write may carry, or too large an attachment
    │   └── NotClean             a name that holds what the sanitiser takes out, or a rule that failed
    ├── Closed                   the store was closed, or opened before os.fork
    ├── KeyUnavailable           no key, another one, or one that cannot be fetched; nothing was touched
    ├── Damaged                  stored bytes that do not read back as what was written
    │   └── MissingAttachment    a message is there, and the bytes of one of its attachments are not
    ├── PartialImport            what could be read was kept, the rest could not; carries the report
    ├── ProviderMismatch         a snapshot of another provider; names both
    ├── MissingExtra             (also an ImportError) a package that is not installed; names the extra
    ├── ChatError                the provider, or the way to it, failed
    │   ├── ProviderError        it answered with an error, with nonsense, or not at all
    │   ├── ToolLoopLimit        the model still calls tools, and the bound is reached; all that happened is kept
    │   ├── InvalidAnswer        an answer that was to fit a schema, and does not
    │   └── Unsupported          this client cannot do that
    └── StorageError             the place where the data lies
        ├── CannotOpen           missing permission, not a directory, cannot be created
        ├── Denied               the place refuses us: permissions, credentials
        ├── Unavailable          the place could not be reached, or did not answer in time
        ├── NotAStore            a file, but not one of ours
        ├── NotSealed            a key was given, and the store is plain
        ├── NewerFormat          written by a newer hitherto
        ├── ReadOnly             may be read, not written
        ├── Busy                 other writers held the lock for too long
        ├── StorageFull          no space, or the quota is used up; what was acknowledged is safe
        ├── Suspended            writing failed again and again: for a while it is not tried
        └── CommitUnknown        the store could not find out whether the write was kept

Each error says what happened and carries the data that a program needs to react. Its `hint` says what to do now; a
traceback shows the hint as a note. No error holds the text of a message, a key or a secret.
"""

import re
from collections.abc import Mapping, Sequence

__all__ = [
    "AlreadyExists",
    "Ambiguous",
    "BelowFloor",
    "Busy",
    "CannotOpen",
    "ChatError",
    "Closed",
    "CommitUnknown",
    "Conflict",
    "ConversationFull",
    "Damaged",
    "Denied",
    "HasChildren",
    "Held",
    "HithertoError",
    "InvalidAnswer",
    "InvalidArgument",
    "InvalidBaseURL",
    "InvalidCursor",
    "InvalidID",
    "InvalidKey",
    "InvalidMessage",
    "InvalidQuery",
    "InvalidSnapshotID",
    "KeyUnavailable",
    "MissingAttachment",
    "MissingExtra",
    "NewerFormat",
    "NotAStore",
    "NotClean",
    "NotExportable",
    "NotFound",
    "NotSealed",
    "PartialImport",
    "PayloadTooLarge",
    "ProviderError",
    "ProviderMismatch",
    "ReadOnly",
    "StorageError",
    "StorageFull",
    "Suspended",
    "ToolLoopLimit",
    "Unavailable",
    "Unsupported",
]


class Hint(str):
    """A hint with a code, which becomes the code of the error.

    The code is stable, the words are not. A program that words the hint for its own users, as the command line does,
    looks up the code and fills in the values."""

    code: str
    values: Mapping[str, str]

    def __new__(cls, code: str, text: str, **values: str) -> "Hint":
        """`text` has a field in braces for each value."""
        self = super().__new__(cls, text.format(**values) if values else text)
        self.code, self.values = code, values
        return self


class HithertoError(Exception):
    """The root of all errors of hitherto.

    `code` names the trouble and is stable: the name of the class as in `not-found`, or a more exact one if the class
    has several hints. `values` holds the parts of such a hint that vary."""

    hint: str | None = None
    code: str = "hitherto-error"
    values: Mapping[str, str] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(shorten(message))
        if hint is not None:
            self._set_hint(hint)
        if self.hint is not None:
            self.add_note(f"{_NOTE}{self.hint}")

    def replace_hint(self, hint: str) -> None:
        """Set another hint, and show it in tracebacks instead of the old one."""
        self._set_hint(hint)
        notes = [note for note in getattr(self, "__notes__", ()) if not note.startswith(_NOTE)]
        self.__notes__ = [f"{_NOTE}{self.hint}", *notes]

    def _set_hint(self, hint: str) -> None:
        self.hint = shorten(str(hint))
        if isinstance(hint, Hint):
            self.code, self.values = hint.code, hint.values
        else:
            self.code, self.values = type(self).code, {}


_LONGEST = 1000  # characters of an error, and of its hint
_NOTE = "hint: "


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Cut the middle out of a text that is too long.

    Every error is shortened here, because errors repeat the arguments of callers (a path, a name), which may have any
    length. The end stays, because it says what failed.
    """
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end - 3]}...{text[-end:]}"


def _list_names(ids: Sequence[str], most: int = 5, longest: int = 40) -> str:
    """List ids in an error message. They are escaped and shortened: they may be hostile input."""
    shown = ", ".join(ascii(i[:longest])[1:-1] + ("..." if len(i) > longest else "") for i in ids[:most])
    return shown + (f" and {len(ids) - most} more" if len(ids) > most else "")


class NotFound(HithertoError):
    """No such message or conversation. `ids` names what is missing."""

    hint = "list what is there with store.conversations() or store.messages()"

    def __init__(self, what: str, ids: Sequence[str], *, hint: str | None = None) -> None:
        super().__init__(f"no such {what}: {_list_names(ids)}", hint=hint)
        self.ids = tuple(ids)


class Ambiguous(HithertoError):
    """A prefix that fits several. `candidates` has some of them."""

    hint = "give more characters of the id"

    def __init__(self, prefix: str, candidates: Sequence[str]) -> None:
        super().__init__(f"{_list_names([prefix])} fits more than one: {_list_names(candidates)}")
        self.candidates = tuple(candidates)


class AlreadyExists(HithertoError):
    """The thing that the caller wants to create exists already."""

    hint = "open it with store.conversation(id), or use store.ensure(key=…) to get or start"

    def __init__(self, what: str, name: str, *, hint: str | None = None) -> None:
        super().__init__(f"{what} already exists: {_list_names([name], longest=300)}", hint=hint)
        self.name = name


class Conflict(HithertoError):
    """Another writer was faster. `head` is the current state, `expected` the state that the caller expected: the id of
    a message for a conversation, the revision for a record (a number) or a snapshot (text)."""

    hint = "read the thread again and decide, or append with on_conflict='follow' or 'branch'"

    def __init__(
        self,
        *,
        expected: str | int | None,
        head: str | int | None,
        what: str = "the head",
        nothing: str = "empty",
        hint: str | None = None,
    ) -> None:
        now, believed = (nothing if one is None or one == "" else one for one in (head, expected))
        super().__init__(f"{what} is {now}, not {believed}", hint=hint)
        self.expected = expected
        self.head = head


class ConversationFull(HithertoError):
    """A write would make a conversation larger than `max_conversation_bytes` allows; nothing was stored. `size` is the
    size that it would have, `limit` the largest allowed size."""

    hint = "go on in a new conversation; a larger max_conversation_bytes, given when the store is opened, allows it"

    def __init__(self, conversation: str, size: int, limit: int) -> None:
        super().__init__(f"conversation {conversation} would have {size:,} bytes; the limit is {limit:,}")
        self.conversation = conversation
        self.size = size
        self.limit = limit


class HasChildren(HithertoError):
    """Deleting this alone would orphan the messages below it."""

    hint = "delete with recursive=True to take the whole subtree"

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__(f"other messages stand below: {_list_names(ids)}")
        self.ids = tuple(ids)


class Held(HithertoError):
    """The conversation is on hold: it is kept until the hold is released."""

    hint = "release the hold first"


class BelowFloor(Held):
    """The conversation is younger than the retention floor of the workspace."""

    hint = "hitherto.acting(name, why=…, override_floor=True) around the call destroys it all the same"


class NotExportable(HithertoError):
    """The conversation must not leave its store: it is not exported, copied elsewhere, or made a snapshot of."""

    hint = "the owner may allow it: Records(store).update(id, privacy={'exportable': True})"

    def __init__(self, conversation: str, *others: str) -> None:
        self.conversation = conversation
        self.conversations = (conversation, *others)  # all conversations that must not leave
        many = f"conversations {_list_names(self.conversations)} are" if others else f"conversation {conversation} is"
        super().__init__(f"{many} not to leave the store")


class InvalidArgument(HithertoError, ValueError):
    """The call itself is wrong; nothing was read or stored."""


class InvalidID(InvalidArgument):
    """Not the shape of an id."""

    hint = "message ids have 6 letters and digits; conversation ids are UUIDs"

    def __init__(self, given: object, *, hint: str | None = None) -> None:
        shown = _list_names([given]) if isinstance(given, str) else f"a {type(given).__name__}"
        super().__init__(f"not an id: {shown or 'an empty string'}", hint=hint)


class InvalidMessage(InvalidArgument):
    """The message holds something that cannot be kept exactly as it is, so it is refused rather than changed."""


class InvalidKey(InvalidArgument):
    """Not a key: it has too few bytes, too many, or none at all. It is never taken for "no encryption"."""

    hint = "a key has exactly 32 random bytes: Key.generate() makes one"


class InvalidCursor(InvalidArgument):
    """A cursor of another list, another store, or not a cursor at all."""

    hint = "start again without a cursor; pass page.next_cursor to the same listing only"


class InvalidQuery(InvalidArgument):
    """Words to search for that cannot be understood."""

    hint = 'words that must all occur, "a phrase", begin*, a OR b, -without; put anything odd into quotes'


class InvalidBaseURL(InvalidArgument):
    """An address that no credential may be sent to. `rule` says which rule refuses it: "length", "characters",
    "parse", "userinfo", "scheme", "host" or "placeholder"; "missing" if there is none, "redirect" if the provider sends
    elsewhere. The address may hold a secret, so that no part of it is ever shown."""

    hint = "give the provider's https address, and the key apart from it"

    def __init__(self, message: str, *, rule: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule


class InvalidSnapshotID(InvalidArgument):
    """Not the shape of a snapshot's id."""

    hint = "a snapshot's id is a UUID in small letters: 8-4-4-4-12 hexadecimal digits"

    def __init__(self, given: object) -> None:
        shown = _list_names([given]) if isinstance(given, str) else f"a {type(given).__name__}"
        super().__init__(f"not the id of a snapshot: {shown or 'an empty string'}")


class PayloadTooLarge(InvalidArgument):
    """The text and JSON of one write, or an attachment, exceed the limit; nothing was stored."""

    hint = "split the write, or pass binary content as bytes: it does not count here"

    def __init__(
        self, size: int, limit: int, *, what: str = "text and JSON in one write", hint: str | None = None
    ) -> None:
        if hint is None and "text" not in what:
            text = "a larger max_attachment, given when the store is opened, allows it"
            hint = Hint("attachment-too-large", text)
        super().__init__(f"{size:,} bytes of {what}; the limit is {limit:,}", hint=hint)
        self.size = size
        self.limit = limit


class NotClean(InvalidArgument):
    """A value cannot be cleaned, so nothing was stored. Either a name holds something that the sanitiser removes (names
    are used to find things again, so they cannot be changed), or a rule failed."""

    hint = "choose a name that says nothing"


class Closed(HithertoError):
    """The store was closed, or belongs to the process before os.fork."""

    hint = "open the store again in this process"


class KeyUnavailable(HithertoError):
    """The key of a sealed store is missing, is another one, or cannot be fetched. Nothing was read, moved or made."""

    hint = "open the store with the key it was sealed with: hitherto.open(path, key=…)"


class Damaged(HithertoError):
    """Stored bytes that do not read back as what was written. They are never returned as if they were good."""

    hint = "run store.verify() to see everything that is wrong; restore the rest from a backup"
    record: int | None = None  # the number of the message, if the code that raises knows better than the reader


class MissingAttachment(Damaged):
    """The message is there, and the store has lost the bytes of one of its attachments. (An attachment whose message
    was deleted is `NotFound`.) `size` is the number of lost bytes; `message` is the id of the message, where known."""

    hint = "the rest of the message can be read; restore the attachment from a backup, or go on without it"

    def __init__(self, size: int, message: str | None = None) -> None:
        of = "" if message is None else f" of message {_list_names([message])}"
        super().__init__(f"an attachment{of} is missing: its {size:,} bytes are not in the store")
        self.size = size
        self.message = message


class PartialImport(HithertoError):
    """Some of a file could not be read. The rest is kept, and `report` lists what was added and what is wrong."""

    hint = "error.report.unreadable names each; mend the file and load it again: what is there is not added twice"

    def __init__(self, message: str, report: object) -> None:
        super().__init__(message)
        self.report = report


class ProviderMismatch(HithertoError):
    """A snapshot of another provider: its messages are in that provider's own words. `expected` is the client's
    provider, `found` the snapshot's. The client's history is as it was."""

    def __init__(self, *, expected: str, found: str, what: str = "snapshot", hint: str | None = None) -> None:
        hint = hint or (
            f"restore it into a client of {_list_names([found])}; or put it into a store, and "
            "hitherto.resume(client, store, store.restore(snapshot), convert=True)"
        )
        super().__init__(f"the {what} is of {_list_names([found])}, the client of {_list_names([expected])}", hint=hint)
        self.expected = expected
        self.found = found


class MissingExtra(HithertoError, ImportError):
    """A package that is needed here is not installed. `extra` names the extra of hitherto that installs it; it is empty
    for a package that hitherto itself requires."""

    def __init__(self, package: str, extra: str = "") -> None:
        what = f"'hitherto[{extra}]'" if extra else package
        super().__init__(f"{package} is not installed", hint=f"pip install {what}")
        self.name = package
        self.package = package
        self.extra = extra


class ChatError(HithertoError):
    """The provider, or the connection to it, failed. All earlier messages are kept."""


class ProviderError(ChatError):
    """The provider answered with an error, with nonsense, or not at all. `provider` names it, `status` is the HTTP
    status where there is one; the error of the provider's own package, where one was raised, is the `__cause__`."""

    def __init__(self, message: str, *, provider: str, status: int | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.provider = provider
        self.status = status


class ToolLoopLimit(ChatError):
    """The model goes on calling tools, and the bound on rounds is reached. All that happened is kept in the history.
    `rounds` is the bound."""

    hint = "go on with another chat(), or allow more rounds where the client is made"

    def __init__(self, rounds: int) -> None:
        super().__init__(f"the model still calls tools after {rounds} round{'' if rounds == 1 else 's'}")
        self.rounds = rounds


class InvalidAnswer(ChatError):
    """An answer does not fit the schema that was asked for. `text` is the answer of the model."""

    hint = "ask again, or allow more tokens: the answer may have been cut off"

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class Unsupported(ChatError):
    """This client cannot do that."""


class StorageError(HithertoError):
    """The storage failed."""

    hint = "look at the disk and at the log of the system, then try again; what was acknowledged before is kept"


class CannotOpen(StorageError):
    """The store cannot be opened or created here."""

    hint = "check the path and the permissions"
    missing = False  # True: the place for a store exists, and is empty


class Denied(StorageError):
    """The storage refuses access."""

    hint = "check the permissions of the directory, or the credentials and the rights that they give"


class Unavailable(StorageError):
    """The storage could not be reached, or did not answer in time, after all retries. A write whose answer never came
    may have been kept."""

    hint = "check the address and the network, then try again; look first whether a write was kept"


class NotAStore(StorageError):
    """The file is not a hitherto store. It was not touched."""

    hint = "give the path of a hitherto store, or of a file that does not exist yet"


class NotSealed(StorageError):
    """A key was given, and the store is plain. Nothing was written: an attacker may have replaced a sealed store by a
    plain one."""

    hint = "open it without a key; store.seal(key) seals it"


class NewerFormat(StorageError):
    """Written by a newer hitherto. It was not touched."""

    hint = "upgrade hitherto: pip install --upgrade hitherto"


class ReadOnly(StorageError):
    """The store may be read but not written."""

    hint = "check the permissions of the file and of its directory"


class Busy(StorageError):
    """Other writers held the lock for longer than the timeout."""

    hint = "try again; a larger timeout_seconds waits longer"


class StorageFull(StorageError):
    """No space is left. This write was not acknowledged; everything acknowledged before is safe."""

    hint = "free some space, or purge conversations, then try again"


class Suspended(StorageError):
    """Writing failed again and again, so for a while it is not tried at all. Reading and purging go on. This write was
    not acknowledged. `retry_seconds` is when the next one is tried."""

    hint = "look at the disk; writing resumes by itself"

    def __init__(self, message: str, *, retry_seconds: float = 0.0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_seconds = retry_seconds


class CommitUnknown(StorageError):
    """It is unknown whether the write was kept. Backends raise it; the store then reads until it knows, and passes the
    error on only if it cannot read either. `reason` is the error that makes a retry useless, if the write turns out not
    to be kept."""

    hint = "read the conversation again before you repeat the write"

    def __init__(self, message: str, *, reason: HithertoError | None = None) -> None:
        super().__init__(message)
        self.reason = reason
