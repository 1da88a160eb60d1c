"""What becomes of an error: an exit code that tells its kind, and two lines that say what happened and what to do now.

The library's hints are for people who write code: `store.verify()`, `Key.generate()`. Here they are said to those who
type commands.
"""

from .. import errors
from ._terminal import print_error

FAILED, MISUSED, NOTHING, UNKNOWN, HELD, LOCKED, UNSOUND, PARTIAL, BUSY, INTERRUPTED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 130
_CODES: tuple[tuple[type[errors.HithertoError], int], ...] = (
    (errors.NotFound, UNKNOWN),
    (errors.Ambiguous, UNKNOWN),
    (errors.InvalidID, UNKNOWN),
    (errors.Held, HELD),
    (errors.NotExportable, HELD),
    (errors.KeyUnavailable, LOCKED),
    (errors.InvalidKey, LOCKED),
    (errors.NotSealed, LOCKED),
    (errors.Damaged, UNSOUND),
    (errors.PartialImport, PARTIAL),
    (errors.Busy, BUSY),
    (errors.InvalidMessage, FAILED),
    (errors.PayloadTooLarge, FAILED),
    (errors.InvalidArgument, MISUSED),  # what is left of it: the call itself is wrong
)
# What the library advises those who write code, said to those who type commands.
_HINTS: dict[type[errors.HithertoError], str] = {
    errors.NotFound: "hitherto conversation list shows what there is",
    errors.Held: "hitherto release takes the hold away",
    errors.NotExportable: "export the others by their ids; hitherto backup keeps the store as a whole",
    errors.HasChildren: "--cascade takes everything below it, too",
    errors.KeyUnavailable: "--key, HITHERTO_KEY or the configuration file says where its key comes from",
    errors.NotSealed: "leave --key out, or seal the store: hitherto key seal",
    errors.Damaged: "hitherto verify names everything that is damaged; hitherto restore brings a backup back",
    errors.AlreadyExists: "choose another name",
    errors.Conflict: "try again",
    errors.ConversationFull: "begin a new conversation: hitherto chat -n",
    errors.InvalidKey: "a key has 32 random bytes: hitherto key new makes one",
    errors.InvalidCursor: "begin again",
    errors.PayloadTooLarge: "say it in several pieces, or pass large files as attachments",
    errors.Closed: "try again",
    errors.PartialImport: "mend the file and import it again: what is there is not added twice",
    errors.ToolLoopLimit: "say something more, and it goes on",
    errors.Busy: "try again when the others are done",
    errors.StorageFull: "free some space, then try again; what was kept before is safe",
    errors.CommitUnknown: "look whether it was kept, then try again",
    errors.NewerFormat: "upgrade hitherto",
}
_BEGINS = "hitherto chat begins one, hitherto init makes one; hitherto where says who named the database"
# The same inside of hints that say more than that.
_PHRASES = (
    ("open it once for writing, which makes one", _BEGINS),
    ("open it with create=True, which makes one", _BEGINS),
    ("; read_only=True reads here", ""),
    ("raise pool_size in the address, or timeout_seconds", "raise pool_size in the address"),
    ("the store has no workspace of that name", "hitherto chat begins it; --workspace names another"),
    ("let a role that may do it open the store once", "let a role that may do it run hitherto init once"),
    ("Key.generate() is for a new store only", "hitherto key new is for a new store only"),
    (": Key.generate() makes one", ": hitherto key new makes one"),
    ("; or format=…", "; or --format"),
    ("store.seal(key) seals it", "hitherto key seal seals it"),
    ("store.rotate(key) gives it another key", "hitherto key rotate gives it another key"),
    ("hitherto.formats.names(writable=True)", "hitherto export --help lists those that are written"),
    ("; a larger timeout_seconds waits longer", ": other processes use the store"),
    ("call scrub() again", "try again"),
    ('or format="gtb" for a directory of them', "or --format gtb for a folder of them"),
    ("use Key.from_file or Key.from_command, or run", "keep it in a file (file:PATH), or run"),
    ("load(…, format=…)", "--format"),
    ("look at the path; a file is written into a directory that exists", "look at the path"),
    (
        "a store is opened with hitherto.open(path), and saved from there",
        "hitherto copy takes the conversations of another store; hitherto restore brings a backup back",
    ),
)


def report_error(error: Exception) -> int:
    """Say what went wrong; the exit code. What is no error of ours is raised: we have made a mistake."""
    if not isinstance(error, errors.HithertoError):
        raise error
    code = code_of(error)
    print_error(str(error), hint_of(error) or ("hitherto --help shows how" if code == MISUSED else None))
    return code


def code_of(error: errors.HithertoError) -> int:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def hint_of(error: errors.HithertoError) -> str | None:
    """What to do now."""
    hint = error.hint if error.hint != type(error).hint else kind_hint(type(error))
    for said, better in _PHRASES:
        hint = hint and hint.replace(said, better)
    return hint


def kind_hint(kind: type[errors.HithertoError]) -> str | None:
    """What to do about any error of a kind."""
    return next((hint for known, hint in _HINTS.items() if issubclass(kind, known)), kind.hint)
