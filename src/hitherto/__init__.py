"""hitherto keeps conversations with language models.

    import hitherto
    from hitherto import Message

    with hitherto.open("chats.db") as store:
        talk = store.start(title="Failing build")
        talk.append(Message.user("Why is the build failing?"))

These are the names that most programs need. The others are in the modules of this package: `hitherto.events`,
`hitherto.model`, `hitherto.reports` and so on; docs/reference.md has them all. Importing this module loads nothing
else: each name brings its module on first use.

One exception: an error is caught where the call is made, so `hitherto.NotFound` means `hitherto.errors.NotFound`, and
each other error can be named in the same way. `__all__` and `dir` do not repeat them.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true; importing typing for it would be most of our own import
if TYPE_CHECKING:
    from . import accountability as accountability
    from . import aio as aio
    from . import attachment as attachment
    from . import bundles as bundles
    from . import chat as chat
    from . import conversation as conversation
    from . import copying as copying
    from . import erasures as erasures
    from . import errors as errors
    from . import events as events
    from . import formats as formats
    from . import keys as keys
    from . import listing as listing
    from . import model as model
    from . import recorder as recorder
    from . import records as records
    from . import reports as reports
    from . import rescue as rescue
    from . import retention as retention
    from . import sanitiser as sanitiser
    from . import snapshots as snapshots
    from . import store as store
    from . import threads as threads
    from . import usage as usage
    from .accountability import acting
    from .aio import AsyncConversation, AsyncStore, open_async
    from .conversation import Conversation
    from .errors import *  # noqa: F403  # each error, as said above
    from .errors import HithertoError
    from .keys import Key
    from .model import Block, Message, Saved
    from .opening import open
    from .recorder import history, into, record, recording, resume
    from .retention import RetentionPolicy
    from .sanitiser import Sanitiser
    from .store import Store
    from .threads import compare, thread

__version__ = "0.1.0"

__all__ = [
    "AsyncConversation",
    "AsyncStore",
    "Block",
    "Conversation",
    "HithertoError",
    "Key",
    "Message",
    "RetentionPolicy",
    "Sanitiser",
    "Saved",
    "Store",
    "__version__",
    "acting",
    "compare",
    "history",
    "into",
    "open",
    "open_async",
    "record",
    "recording",
    "resume",
    "thread",
]

# Where each name lives. A test compares this with __all__ and with the imports above.
_HOMES = {
    "accountability": ("acting",),
    "aio": ("AsyncConversation", "AsyncStore", "open_async"),
    "conversation": ("Conversation",),
    "errors": ("HithertoError",),
    "keys": ("Key",),
    "model": ("Block", "Message", "Saved"),
    "opening": ("open",),
    "recorder": ("history", "into", "record", "recording", "resume"),
    "retention": ("RetentionPolicy",),
    "sanitiser": ("Sanitiser",),
    "store": ("Store",),
    "threads": ("compare", "thread"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = (
    *("accountability", "aio", "attachment", "bundles", "chat", "conversation", "copying", "erasures", "errors"),
    *("events", "formats", "keys", "listing", "model", "recorder", "records", "reports", "rescue", "retention"),
    *("sanitiser", "snapshots", "store", "threads", "usage"),
)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    home = _HOME_OF.get(name) or ("errors" if name[:1].isupper() else None)
    found = home and import_module(f".{home}", __name__)
    if not found or name not in found.__all__:
        raise AttributeError(f"module 'hitherto' has no attribute {name!r}")
    value = globals()[name] = getattr(found, name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
