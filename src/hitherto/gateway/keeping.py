"""Keep what passes through the gateway: one recorder for each dialect and user, over one store.

A request is kept whole or by its new messages, as `recorder` does for the SDKs of this process. By default the gateway
fails open: if the store cannot take an exchange, the program goes on, and the loss is reported once and counted. A
later request of the same conversation mostly brings the lost messages along, in its history.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._engine.creating import build_meta
from .._http_hooks import Sent
from .._system.own_files import identify
from .._system.task_threads import Threads
from ..conversation import Conversation
from ..dialects import dialect as find_dialect
from ..errors import HithertoError, StorageError
from ..recorder import into
from ..recorder._recorder import Recorder
from ..recorder._responses import decode_request
from ..recorder._sdk import Listening, RecordedExchange, dialect_of_path
from .belonging import Belonging, find_belonging
from .decoding import decode
from .naming import make_title

if TYPE_CHECKING:
    from ..store import Store

__all__ = ["Keeper"]

_MAX_USERS = 256  # whose recorders are kept ready
_PARTIAL_SECONDS = 0.75
_MOST_THREADS = 4  # they write; more of them would only wait for each other, and hold the thread up that passes bytes

Report = Callable[[str], None]


class Keeper:
    """The recorders of one gateway."""

    def __init__(self, store: "Store", *, report: Report, project: Path | None = None) -> None:
        self.store = store
        self._file = _identify_file(store)
        self._report = report
        self._project = project
        self.threads = Threads(_MOST_THREADS)
        self._lock = threading.Lock()
        self._users: OrderedDict[str, Listening] = OrderedDict()  # the one that was heard last is at the end
        self.lost = 0  # exchanges that could not be kept

    def begin(self, sent: Sent) -> RecordedExchange | None:
        """Keep a request. None if it is no chat. Raises `HithertoError` or `CannotDecode` if it cannot be kept."""
        dialect = dialect_of_path(sent.path)
        if dialect is None:
            return None
        self._check_file()
        encoding = sent.headers.get("content-encoding", "")
        sent = replace(sent, body=decode(sent.body, encoding))
        body = decode_request(sent.body)  # a body that is no request begins no conversation
        belonging = find_belonging(sent)
        listening = self._listening(belonging.user)
        talk = self._find_conversation(belonging)
        with nullcontext() if talk is None else into(talk):
            exchange = listening.on_request(sent, is_main=belonging.is_main)
        if talk is not None and belonging.run is None and not talk.title:
            with suppress(HithertoError):  # all is kept without a title, and the next request tries again
                self._name(talk, dialect, body)
        return exchange

    def _name(self, talk: Conversation, dialect: str, body: dict[str, object]) -> None:
        """Give a conversation a title, if a person says something in this request."""
        title = make_title(find_dialect(dialect).parse_request(body).messages, self.store.engine.redactor)
        if title:
            talk.rename(title)

    def _check_file(self) -> None:
        """Raise `StorageError` if the file of the store has been deleted or moved: the system goes on taking what is
        written to it, and nobody would find it."""
        if _identify_file(self.store) != self._file:
            where = self.store.engine.backend.info.location
            raise StorageError(f"{where} was deleted, moved or replaced", hint="start the gateway again")

    def _find_conversation(self, belonging: Belonging) -> Conversation | None:
        """The conversation that a request belongs to, or the run of a sub-agent beside it. None: its history tells."""
        if belonging.key is None:
            return None
        metadata = {"user": belonging.user} if belonging.user else None
        talk = self.store.ensure(belonging.key, metadata=metadata, project=self._project)
        return talk if belonging.run is None else talk.subagent(*belonging.run)

    def lose(self, error: Exception) -> None:
        """Count an exchange that could not be kept. The first one is reported."""
        with self._lock:
            self.lost += 1
            is_first = self.lost == 1
        if is_first:
            shown = str(error) if isinstance(error, HithertoError) else type(error).__name__
            self._report(f"not kept: {shown}. The program goes on; this is said once, and counted until the end")

    def close(self) -> None:
        """Write what is held, and end every recording. Raises the first error."""
        failure: HithertoError | None = None
        with self._lock:
            users = list(self._users.values())
        for listening in users:
            failure = _close(listening) or failure
        self.threads.close()
        if failure is not None:
            raise failure

    def _listening(self, user: str) -> Listening:
        with self._lock:
            found = self._users.pop(user, None) or self._open(user)
            self._users[user] = found
            idle = self._users.popitem(last=False)[1] if len(self._users) > _MAX_USERS else None
        if idle is not None:
            _close(idle)
        return found

    def _open(self, user: str) -> Listening:
        about = build_meta(self.store.engine, "", None, {"user": user} if user else None, self._project)

        def make(name: str, provider: str) -> Recorder:
            return Recorder(self.store, find_dialect(name), provider, about, None, _PARTIAL_SECONDS, scope=user)

        return Listening(None, make, kind="gateway")


def _identify_file(store: "Store") -> tuple[int, int] | None:
    """Return which file a store is in; None if it is in none."""
    try:
        return identify(os.stat(store.engine.backend.info.location))
    except OSError:
        return None


def _close(listening: Listening) -> HithertoError | None:
    failure: HithertoError | None = None
    for recorder in listening.recorders():
        try:
            recorder.close()
        except HithertoError as error:
            failure = failure or error
    return failure
