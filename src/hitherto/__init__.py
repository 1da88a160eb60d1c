"""hitherto keeps conversations with language models.

    import hitherto
    from hitherto import Message

    with hitherto.open("chats.db") as store:
        talk = store.start(title="Failing build")
        talk.append(Message.user("Why is the build failing?"))

Everything public is named here. Importing this module loads nothing else: each name brings its module on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._verify import Problem, Report
    from .conversation import Branch, Conversation, ThreadUsage
    from .errors import (
        AlreadyExists,
        Ambiguous,
        Busy,
        CannotOpen,
        Closed,
        CommitUnknown,
        Conflict,
        Damaged,
        HasChildren,
        Held,
        HithertoError,
        InvalidArgument,
        InvalidCursor,
        InvalidID,
        InvalidMessage,
        NewerFormat,
        NotAStore,
        NotFound,
        PayloadTooLarge,
        ReadOnly,
        StorageError,
        StorageFull,
    )
    from .model import Block, BlockType, Message, Modality, Role, Saved, Setup, Usage
    from .opening import open
    from .store import ConversationInfo, MessageListing, Page, PurgeReport, Stats, Store
    from .threads import MessageDeleter, MessageGetter, MessageLister, MessageSaver, thread

__version__ = "0.1.0"

_HOMES = {
    "_verify": "Problem Report",
    "conversation": "Branch Conversation ThreadUsage",
    "errors": (
        "AlreadyExists Ambiguous Busy CannotOpen Closed CommitUnknown Conflict Damaged HasChildren Held HithertoError InvalidArgument "
        "InvalidCursor InvalidID InvalidMessage NewerFormat NotAStore NotFound PayloadTooLarge ReadOnly StorageError StorageFull"
    ),
    "model": "Block BlockType Message Modality Role Saved Setup Usage",
    "opening": "open",
    "store": "ConversationInfo MessageListing Page PurgeReport Stats Store",
    "threads": "MessageDeleter MessageGetter MessageLister MessageSaver thread",
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [  # noqa: PLE0604  # the names above, so that they are written once
    "__version__",
    *sorted(_MODULE_OF),
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'hitherto' has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
