"""hitherto keeps conversations with language models.

    import hitherto
    from hitherto import Message

    with hitherto.open("chats.db") as store:
        talk = store.start(title="Failing build")
        talk.append(Message.user("Why is the build failing?"))

Everything public is named here. Importing this module loads nothing else: each name brings its module on first use.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true; importing typing for it would be most of our own import
if TYPE_CHECKING:
    from . import chat as chat
    from . import formats as formats
    from . import records as records
    from . import snapshots as snapshots
    from ._copying.copy_store import StoreCopy, copy_store
    from ._engine.recovery import Partial, RecoverySnapshot
    from ._engine.verify import Problem, VerifyReport
    from ._erasure.maintenance import Maintenance
    from ._erasure.purging import PurgeReport
    from ._erasure.shutdown import CloseReport
    from ._sealing.rotation import RotationProgress, RotationReport
    from ._search.search import Hit
    from .aio import AsyncConversation, AsyncMessageListing, AsyncStore, open_async
    from .attachment import Attachment
    from .conversation import Branch, Conversation, SetupChange, ThreadUsage
    from .dialects._repair import Repair
    from .errors import (
        AlreadyExists,
        Ambiguous,
        Busy,
        CannotOpen,
        ChatError,
        Closed,
        CommitUnknown,
        Conflict,
        ConversationFull,
        Damaged,
        Denied,
        HasChildren,
        Held,
        HithertoError,
        InvalidAnswer,
        InvalidArgument,
        InvalidBaseURL,
        InvalidCursor,
        InvalidID,
        InvalidKey,
        InvalidMessage,
        InvalidQuery,
        InvalidSnapshotID,
        KeyUnavailable,
        MissingAttachment,
        MissingExtra,
        NewerFormat,
        NotAStore,
        NotClean,
        NotExportable,
        NotFound,
        NotSealed,
        PartialImport,
        PayloadTooLarge,
        ProviderError,
        ProviderMismatch,
        ReadOnly,
        StorageError,
        StorageFull,
        Suspended,
        ToolLoopLimit,
        Unavailable,
        Unsupported,
    )
    from .events import (
        BreakerChanged,
        CapacityWarning,
        ConversationDeleted,
        ConversationStored,
        Event,
        KeyRotated,
        PurgeCompleted,
        PurgeFailure,
        Quarantined,
        SlowCommit,
        SnapshotRebuilt,
        SweepFinished,
        TurnedReadOnly,
    )
    from .keys import Key
    from .listing import ConversationInfo, MessageListing, Page
    from .model import Block, BlockType, Message, Modality, Role, Saved, Setup, Usage
    from .opening import open
    from .recorder import Recording, history, into, is_recorded, record, recording, resume
    from .recorder._own_clients import Resumed
    from .retention import RetentionPolicy, SweepItem, SweepPlan, SweepReport
    from .sanitiser import Cleaned, Finding, Rule, Sanitiser, Stream
    from .store import Stats, Store
    from .threads import Comparison, MessageDeleter, MessageGetter, MessageLister, MessageSaver, compare, thread

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "Ambiguous",
    "AsyncConversation",
    "AsyncMessageListing",
    "AsyncStore",
    "Attachment",
    "Block",
    "BlockType",
    "Branch",
    "BreakerChanged",
    "Busy",
    "CannotOpen",
    "CapacityWarning",
    "ChatError",
    "Cleaned",
    "CloseReport",
    "Closed",
    "CommitUnknown",
    "Comparison",
    "Conflict",
    "Conversation",
    "ConversationDeleted",
    "ConversationFull",
    "ConversationInfo",
    "ConversationStored",
    "Damaged",
    "Denied",
    "Event",
    "Finding",
    "HasChildren",
    "Held",
    "Hit",
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
    "Key",
    "KeyRotated",
    "KeyUnavailable",
    "Maintenance",
    "Message",
    "MessageDeleter",
    "MessageGetter",
    "MessageLister",
    "MessageListing",
    "MessageSaver",
    "MissingAttachment",
    "MissingExtra",
    "Modality",
    "NewerFormat",
    "NotAStore",
    "NotClean",
    "NotExportable",
    "NotFound",
    "NotSealed",
    "Page",
    "Partial",
    "PartialImport",
    "PayloadTooLarge",
    "Problem",
    "ProviderError",
    "ProviderMismatch",
    "PurgeCompleted",
    "PurgeFailure",
    "PurgeReport",
    "Quarantined",
    "ReadOnly",
    "Recording",
    "RecoverySnapshot",
    "Repair",
    "Resumed",
    "RetentionPolicy",
    "Role",
    "RotationProgress",
    "RotationReport",
    "Rule",
    "Sanitiser",
    "Saved",
    "Setup",
    "SetupChange",
    "SlowCommit",
    "SnapshotRebuilt",
    "Stats",
    "StorageError",
    "StorageFull",
    "Store",
    "StoreCopy",
    "Stream",
    "Suspended",
    "SweepFinished",
    "SweepItem",
    "SweepPlan",
    "SweepReport",
    "ThreadUsage",
    "ToolLoopLimit",
    "TurnedReadOnly",
    "Unavailable",
    "Unsupported",
    "Usage",
    "VerifyReport",
    "__version__",
    "compare",
    "copy_store",
    "history",
    "into",
    "is_recorded",
    "open",
    "open_async",
    "record",
    "recording",
    "resume",
    "thread",
]

# Where each name lives. A test compares this with __all__ and with the imports above.
_MODULES = {
    "_erasure.shutdown": ("CloseReport",),
    "_engine.recovery": (
        "Partial",
        "RecoverySnapshot",
    ),
    "_sealing.rotation": (
        "RotationProgress",
        "RotationReport",
    ),
    "_search.search": ("Hit",),
    "_erasure.maintenance": ("Maintenance",),
    "_engine.verify": (
        "Problem",
        "VerifyReport",
    ),
    "aio": (
        "AsyncConversation",
        "AsyncMessageListing",
        "AsyncStore",
        "open_async",
    ),
    "attachment": ("Attachment",),
    "conversation": (
        "Branch",
        "Conversation",
        "SetupChange",
        "ThreadUsage",
    ),
    "dialects._repair": ("Repair",),
    "errors": (
        "AlreadyExists",
        "Ambiguous",
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
    ),
    "events": (
        "BreakerChanged",
        "CapacityWarning",
        "ConversationDeleted",
        "ConversationStored",
        "Event",
        "KeyRotated",
        "PurgeCompleted",
        "PurgeFailure",
        "Quarantined",
        "SlowCommit",
        "SnapshotRebuilt",
        "SweepFinished",
        "TurnedReadOnly",
    ),
    "keys": ("Key",),
    "listing": (
        "ConversationInfo",
        "MessageListing",
        "Page",
    ),
    "model": (
        "Block",
        "BlockType",
        "Message",
        "Modality",
        "Role",
        "Saved",
        "Setup",
        "Usage",
    ),
    "_copying.copy_store": ("StoreCopy", "copy_store"),
    "opening": ("open",),
    "recorder": (
        "Recording",
        "history",
        "into",
        "is_recorded",
        "record",
        "recording",
        "resume",
    ),
    "recorder._own_clients": ("Resumed",),
    "retention": (
        "RetentionPolicy",
        "SweepItem",
        "SweepPlan",
        "SweepReport",
    ),
    "sanitiser": (
        "Cleaned",
        "Finding",
        "Rule",
        "Sanitiser",
        "Stream",
    ),
    "_erasure.purging": ("PurgeReport",),
    "store": (
        "Stats",
        "Store",
    ),
    "threads": (
        "Comparison",
        "MessageDeleter",
        "MessageGetter",
        "MessageLister",
        "MessageSaver",
        "compare",
        "thread",
    ),
}
_PACKAGES = ("chat", "formats", "records", "snapshots")
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'hitherto' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
