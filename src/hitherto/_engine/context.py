"""The context: the parts of one opened store.

A `StoreContext` has the parts of one opened store as public fields: its backend, its workspace, the committer, limits,
and the services that other parts call (`TextSearch`, `SweepSchedule`, …). It decides nothing. `ConversationRows` adds
the verbs for rows of conversations, and `Engine` those for messages: functions below `store` take an engine, and none
of them knows `Store`.

A service (quota, leases, quarantine, purges) holds the parts that it uses, never the engine: so an engine is freed at
once when its store is. Three need the whole engine, and hold a weak reference to it: search, the schedule of sweeps,
and the maintenance thread, which must not keep a store alive. The protocols of the services are in `services`.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .._system import forks
from ..backend import WORKSPACE, Backend, ConversationRow, Position
from ..errors import Closed, InvalidArgument, NotFound
from ..events import Listeners
from ..ids import RUN, Names, show_conversation_id
from ..telemetry import Telemetry
from .bodies import VerifiedRow
from .committer import READS_ONLY, Committer
from .process import Opened
from .workspace import Workspace

if TYPE_CHECKING:
    from .._sealing.codec import Codec
    from ..keys import Key
    from ..sanitiser import Sanitiser
    from ..sanitiser.redactor import Redactor
    from .lease import Lease
    from .quota import Quota
    from .services import Background, PendingPurges, Prunes, QuarantineRegister, SweepSchedule, TextSearch

MAX_WRITE_BYTES = 10_000_000
MAX_ATTACHMENT = 4 << 30


def system_clock() -> int:
    """Return microseconds since 1970."""
    return time.time_ns() // 1000


class StoreContext:
    """The parts of one opened store."""

    quota: "Quota"
    search: "TextSearch"
    schedule: "SweepSchedule"
    quarantine: "QuarantineRegister"
    purges: "PendingPurges"
    background: "Background"
    rotation_lease: "Lease"

    def __init__(
        self,
        backend: Backend,
        codec: "Codec | None" = None,
        *,
        key: "Key | None" = None,
        clock: Callable[[], int] | None = None,
        max_write_bytes: int = MAX_WRITE_BYTES,
        max_attachment: int = MAX_ATTACHMENT,
        max_conversation_bytes: int | None = None,
        quarantine_days: float | None = None,
        sanitiser: "Sanitiser | None" = None,
    ) -> None:
        self.backend = backend
        self.clock = clock or system_clock
        self.max_write_bytes = max_write_bytes
        self.max_attachment = max_attachment
        self.max_conversation_bytes = max_conversation_bytes
        self.telemetry = Telemetry(backend.info.name)
        self.listeners = Listeners(self.telemetry.count_event)
        self.committer = Committer(backend, self.listeners, self.clock, self.telemetry)
        self.workspace = Workspace(backend, self.committer, self.clock, codec, key)
        self.message_ids = Names(self.workspace.meta.seed)
        self.redactor = None if sanitiser is None else self.make_redactor(sanitiser)
        self.verified_rows: dict[bytes, VerifiedRow] = {}  # of a sealed store, listed lately
        self.opened = Opened()
        self.forks = forks.count()
        self.at_close: dict[object, Callable[[], None]] = {}  # called before the store is closed, by owner
        self.waits_at_close: dict[object, Callable[[float], bool]] = {}  # and then, with the seconds they may take
        self.checkpoint_stores: dict[object, Prunes] = {}  # where checkpoints of this store may lie
        self.recorded: dict[bytes, int] = {}  # how many recorders keep a conversation now
        self.settled_runs: set[int] = set()  # runs that are packed as far as they can be
        self.described_to: Position | None = None  # how far maintenance has come with the tags for metadata
        self.rotation_lock = threading.Lock()
        self.is_rotation_stuck = False  # damage keeps a rotation from going on
        self.quarantine_seconds = None if quarantine_days is None else quarantine_days * 86_400
        self._runs_lock = threading.Lock()
        self._next_run = 0

    @property
    def codec(self) -> "Codec":
        return self.workspace.codec

    @property
    def is_closed(self) -> bool:
        return self.opened.is_closed

    @property
    def key_id(self) -> str | None:
        """The key the store is sealed with; None if it is plain."""
        sealed = self.workspace.sealed_codec
        return None if sealed is None else sealed.key_id.hex()

    @property
    def read_only(self) -> str | None:
        """Why the store takes no writes; None if it does."""
        return self.committer.refused

    def ensure_open(self) -> None:
        """Raise `Closed` unless the store is open, and in this process."""
        if self.opened.is_closed:
            raise Closed("the store is closed")
        if self.forks != forks.count():
            raise Closed("the store was opened before os.fork, in another process")

    def ensure_removable(self) -> None:
        """Raise `ReadOnly` if the store was opened to be read only. Otherwise removals are written, even while other
        writes are refused."""
        if self.read_only == READS_ONLY:
            self.committer.check()

    def make_redactor(self, sanitiser: "Sanitiser") -> "Redactor":
        """Return a redactor that cleans by these rules, and hashes each value it finds with a key of this workspace."""
        from ..sanitiser.redactor import Redactor  # noqa: PLC0415  # most stores clean nothing

        if not hasattr(sanitiser, "keyed"):
            hint = "sanitiser=hitherto.Sanitiser.secrets()"
            raise InvalidArgument(f"a {type(sanitiser).__name__} where a sanitiser is wanted", hint=hint)
        return Redactor(sanitiser, self.workspace.meta.seed)

    def read_row(self, conversation: bytes) -> ConversationRow:
        """Return the row of a conversation as the backend has it now; `NotFound` if there is none."""
        rows = self.backend.lookup(ids=[conversation])
        if not rows or rows[0].kind == WORKSPACE:
            raise NotFound("conversation", [show_conversation_id(conversation)])
        return rows[0]

    def new_run(self) -> int:
        """Return the first number of a run that is unused as far as this process sees. If another process takes the
        same one at the same time, one commit is answered with `Taken`, and its thread asks again."""
        edge = self.backend.edge()  # not under the lock: a thread that waits for it may hold the connection needed here
        with self._runs_lock:
            number = max(edge, self._next_run)
            self._next_run = number + RUN
            return number
