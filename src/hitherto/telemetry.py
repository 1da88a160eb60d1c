"""Telemetry: OpenTelemetry metrics and spans, if the program uses OpenTelemetry.

This module does not load OpenTelemetry. As soon as the program itself has loaded it (`opentelemetry` is among its
modules) and has set a provider, a store measures: the duration and size of commits, the batches in one commit, purges,
and so on. Libraries load the API for programs that set no provider: then nothing is measured, and a check is repeated
now and then. `HITHERTO_TELEMETRY=0` switches it off. No attribute holds a text, a title, a name or a key.

An error in here never fails a write: one warning says it.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

from . import events

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.trace import Span, Tracer

Attributes = dict[str, str | int]

_AGAIN_SECONDS = 0.1  # between two checks for a provider
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CHAT_SECONDS = tuple(0.01 * 2**n for n in range(14))  # these and the tokens as the conventions for GenAI advise
_TOKENS = tuple(float(4**n) for n in range(14))
HISTOGRAMS = {
    "hitherto.commit.duration": ("s", "Time that a transaction took", _SECONDS),
    "hitherto.commit.size": ("By", "Content in a transaction", tuple(float(4**n) for n in range(3, 13))),
    "hitherto.commit.batches": ("{batch}", "Writes that met in a transaction", tuple(float(2**n) for n in range(10))),
    "db.client.operation.duration": ("s", "Duration of database client operations", _SECONDS),
    "gen_ai.client.operation.duration": ("s", "GenAI operation duration", _CHAT_SECONDS),
    "gen_ai.client.token.usage": ("{token}", "Number of input and output tokens used", _TOKENS),
}
COUNTERS = {
    "hitherto.commit.slow": ("{warning}", "Times that the p95 of commits was too long"),
    "hitherto.conflicts": ("{conflict}", "Writes that somebody else was faster than"),
    "hitherto.purges": ("{conversation}", "Conversations that were purged"),
    "privacy.purge.completed": ("{purge}", "Purges that are out of the files, too"),
    "hitherto.sweeps": ("{sweep}", "Times that retention was carried out"),
    "hitherto.quarantined": ("{record}", "Records put into quarantine"),
    "hitherto.capacity.warnings": ("{warning}", "Times that space ran out, or nearly"),
    "hitherto.key.rotations": ("{rotation}", "Rotations, sealings and unsealings"),
    "hitherto.read_only": ("{store}", "Stores that took no more writes"),
}
STATES = {"hitherto.breaker.state": ("{store}", "Stores whose breaker is in this state")}
_COUNTED: dict[type[events.Event], str] = {
    events.KeyRotated: "hitherto.key.rotations",
    events.Quarantined: "hitherto.quarantined",
    events.SlowCommit: "hitherto.commit.slow",
    events.SweepFinished: "hitherto.sweeps",
    events.TurnedReadOnly: "hitherto.read_only",
}


class Instruments:
    """The instruments and the tracer of this process."""

    def __init__(self, meter: "Meter", tracer: "Tracer") -> None:
        self.tracer = tracer
        self._histograms = {
            name: meter.create_histogram(name, unit, what, explicit_bucket_boundaries_advisory=list(boundaries))
            for name, (unit, what, boundaries) in HISTOGRAMS.items()
        }
        self._counters = {name: meter.create_counter(name, *about) for name, about in COUNTERS.items()}
        self._states = {name: meter.create_up_down_counter(name, *about) for name, about in STATES.items()}

    def record(self, name: str, value: float, about: Attributes) -> None:
        self._histograms[name].record(value, about)

    def count(self, name: str, about: Attributes, number: int = 1) -> None:
        (self._counters.get(name) or self._states[name]).add(number, about)

    def span(self) -> "Span":
        """The current span."""
        from opentelemetry.trace import get_current_span  # noqa: PLC0415  # the program has loaded it

        return get_current_span()


_instruments: Instruments | None = None
_off = False
_look_at = 0.0  # the time of the next check for a provider
_failed = False


def _may_be_watched() -> bool:
    """Is it time to check for a provider, now that OpenTelemetry is loaded?"""
    return not _off and time.monotonic() >= _look_at


def _look() -> Instruments | None:
    """The instruments, made as soon as the program has loaded OpenTelemetry and set a provider. None before."""
    global _instruments, _off, _look_at  # noqa: PLW0603  # one set of instruments per process, as OpenTelemetry wants it
    if _instruments is None and "opentelemetry" in sys.modules and _may_be_watched():
        _look_at = time.monotonic() + _AGAIN_SECONDS
        try:
            from opentelemetry import metrics, trace  # noqa: PLC0415  # only if the program has loaded it
        except ImportError:  # the API is not installed: another package has this name
            _off = True
            return None
        _off = os.environ.get("HITHERTO_TELEMETRY") == "0"
        if not _off and not (_idles(metrics.get_meter_provider()) and _idles(trace.get_tracer_provider())):
            from importlib.metadata import version  # noqa: PLC0415  # as above

            own = version("hitherto")
            _instruments = Instruments(metrics.get_meter("hitherto", own), trace.get_tracer("hitherto", own))
    return _instruments


def _idles(provider: object) -> bool:
    """Is this a provider of the API itself, which does nothing until the program sets another?"""
    return type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))


def measure(work: Callable[[Instruments], None]) -> None:
    """Measure, if a provider is set. An error is warned of once in a process: it would occur with every write."""
    global _failed  # noqa: PLW0603
    try:
        to = _look()
        if to is not None:
            work(to)
    except Exception as error:  # noqa: BLE001  # no error in telemetry may fail a write
        if not _failed:
            _failed = True
            events.warn(f"telemetry failed: {type(error).__name__}")


class Telemetry:
    """The telemetry of one store. Its methods never raise."""

    def __init__(self, system: str) -> None:
        """`system` is the name of the backend."""
        self._system: Attributes = {"db.system.name": system}
        self._state = "closed"  # of the breaker

    @property
    def is_on(self) -> bool:
        if _instruments is None and "opentelemetry" in sys.modules and _may_be_watched():
            measure(lambda _: None)  # checks for a provider
        return _instruments is not None

    def record_commit(self, size: int, batches: int, seconds: float, error: str = "") -> None:
        """Record a transaction of so many bytes and batches."""

        def work(to: Instruments) -> None:
            to.record("hitherto.commit.duration", seconds, self._system)
            to.record("hitherto.commit.size", size, self._system)
            to.record("hitherto.commit.batches", batches, self._system)
            self.took(to, "commit", seconds, error)

        measure(work)

    def took(self, to: Instruments, name: str, seconds: float, error: str) -> None:
        about = self._system | {"db.operation.name": name} | ({"error.type": error} if error else {})
        to.record("db.client.operation.duration", seconds, about)

    def conflict(self, kind: str) -> None:
        """Count a conflict with a faster writer."""
        measure(lambda to: to.count("hitherto.conflicts", self._system | {"kind": kind}))

    def count_event(self, event: events.Event) -> None:
        """Count an event. Every event of the store is passed here, too."""
        measure(lambda to: self._count(to, event))

    def _count(self, to: Instruments, event: events.Event) -> None:
        if isinstance(event, events.BreakerChanged):
            self._turn(to, event.state)
        elif isinstance(event, events.PurgeCompleted):
            about = self._system | {"reason": event.reason}
            to.count("hitherto.purges", about, event.purged_count)
            to.count("privacy.purge.completed", about)
            counted: Attributes = {"reason": event.reason, "purged_count": event.purged_count}
            to.span().add_event("privacy.purge.completed", counted)
        elif isinstance(event, events.CapacityWarning):
            to.count("hitherto.capacity.warnings", self._system | {"what": event.what})
        elif (name := _COUNTED.get(type(event))) is not None:
            to.count(name, self._system)

    def _turn(self, to: Instruments, state: str) -> None:
        for one, number in ((self._state, -1), (state, 1)):
            if one != "closed":
                to.count("hitherto.breaker.state", self._system | {"state": one}, number)
        self._state = state

    def close(self) -> None:
        """Remove the state of the breaker, because the store is closed."""
        if self._state != "closed":
            measure(lambda to: self._turn(to, "closed"))

    def span(self, name: str) -> AbstractContextManager[object]:
        """A span around a call, `hitherto.<name>`, with its duration as a metric."""
        return _Around(self, name, self._system) if self.is_on else _NOTHING


_NOTHING: AbstractContextManager[object] = nullcontext()


class _Around:
    """A span around a call. It records only the type of an error: the message may hold anything."""

    def __init__(self, telemetry: Telemetry, name: str, system: Attributes) -> None:
        self._telemetry, self._name = telemetry, name
        self._about = system | {"db.operation.name": name}
        self._entered: AbstractContextManager[Span] | None = None

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        measure(self._begin)

    def _begin(self, to: Instruments) -> None:
        entered = to.tracer.start_as_current_span(
            f"hitherto.{self._name}", attributes=self._about, record_exception=False, set_status_on_exception=False
        )
        self._span = entered.__enter__()
        self._entered = entered

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        measure(lambda to: self._end(to, "" if kind is None else kind.__name__))

    def _end(self, to: Instruments, error: str) -> None:
        if self._entered is not None:
            if error:
                self._fail(error)
            self._entered.__exit__(None, None, None)
        self._telemetry.took(to, self._name, time.perf_counter() - self._began, error)

    def _fail(self, error: str) -> None:
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415  # the program has loaded it

        self._span.set_attribute("error.type", error)
        self._span.set_status(Status(StatusCode.ERROR, error))


class _Measured(Protocol):
    _telemetry: Telemetry


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=_Measured)
_Method = Callable[Concatenate[S, P], T]


def with_span(method: _Method[S, P, T]) -> _Method[S, P, T]:
    """Decorate a method of a store with a span of its name."""

    @wraps(method)
    def around(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._telemetry.span(method.__name__):
            return method(self, *args, **kwargs)

    return around
