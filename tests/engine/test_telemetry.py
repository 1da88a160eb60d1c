"""Telemetry (D9, D13, D18) through a real OpenTelemetry SDK, and the pace of commits on a real disk."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as gen_ai
from opentelemetry.semconv.attributes import db_attributes as db
from opentelemetry.trace import SpanKind, StatusCode

import hitherto
from hitherto import Message, RetentionPolicy, Store, telemetry
from hitherto._engine import breaker
from hitherto.aio import AsyncConversation
from hitherto.chat import Config, new_client
from hitherto.errors import StorageError
from hitherto.events import Event, SlowCommit
from hitherto.model import to_datetime
from hitherto.testing.faultdisk import FaultDisk

from ..support.provider import chat_answer, provider

SECRET = "sesquipedalian"


class Watched:
    """What a program that watches has seen."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._exporter = InMemorySpanExporter()
        meters = MeterProvider([self._reader])
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.instruments = telemetry.Instruments(meters.get_meter("hitherto"), tracers.get_tracer("hitherto"))

    def points(self, name: str) -> list[dict[str, object]]:
        """The attributes of a metric, each with its `count` and `total`."""
        data = self._reader.get_metrics_data()
        found = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data else []
        return [
            {
                **(point.attributes or {}),
                "count": getattr(point, "count", None),
                "total": getattr(point, "sum", getattr(point, "value", None)),
            }
            for metric in found
            if metric.name == name
            for point in metric.data.data_points
        ]

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if name in (None, span.name)]

    def everything(self) -> str:
        data = self._reader.get_metrics_data()
        return (data.to_json() if data else "") + "".join(span.to_json() for span in self.spans())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    found = Watched()
    monkeypatch.setattr(telemetry, "_instruments", found.instruments)
    monkeypatch.setattr(telemetry, "_failed", False)
    return found


@pytest.fixture
def store(tmp_path: Path, watched: Watched) -> Iterator[Store]:
    with hitherto.open(tmp_path / "store.db", maintenance=False) as opened:
        yield opened


def test_commits_are_measured(store: Store, watched: Watched) -> None:
    talk = store.start(title=SECRET)
    for n in range(5):
        talk.append(Message.user(f"{SECRET} {n}"))
    (seconds,) = watched.points("hitherto.commit.duration")
    count = seconds["count"]
    assert isinstance(count, int)
    assert count >= 6
    assert seconds[db.DB_SYSTEM_NAME] == "sqlite"
    (size,) = watched.points("hitherto.commit.size")
    assert isinstance(size["total"], int | float)
    assert size["total"] > 5 * len(SECRET)
    (batches,) = watched.points("hitherto.commit.batches")
    assert (batches["count"], batches["total"]) == (count, count)
    operations = {
        point[db.DB_OPERATION_NAME]: point["count"] for point in watched.points("db.client.operation.duration")
    }
    assert operations == {"commit": count, "append": 5}
    assert len(watched.spans("hitherto.append")) == 5


def test_the_span_of_an_append_is_below_that_of_its_task(tmp_path: Path, watched: Watched) -> None:
    """Though one thread prepares the appends of all tasks, and they are open at the same time."""
    tracer = watched.instruments.tracer

    async def append(talk: AsyncConversation, name: str) -> None:
        with tracer.start_as_current_span(name):
            await talk.append(Message.user("x"))
            await talk.append(Message.user("y"))

    async def main() -> None:
        async with hitherto.open_async(tmp_path / "store.db", maintenance=False) as store:
            await asyncio.gather(*[append(await store.start(), f"task {n}") for n in range(5)])

    asyncio.run(main())
    tasks = [span.context.span_id for span in watched.spans() if span.name.startswith("task")]
    parents = [span.parent.span_id for span in watched.spans("hitherto.append") if span.parent is not None]
    assert sorted(parents) == sorted(tasks * 2)


def test_nothing_that_was_said_or_named_is_told(store: Store, watched: Watched) -> None:
    talk = store.start(title=SECRET, project=f"/{SECRET}", metadata={"a": SECRET}, system_prompt=SECRET)
    talk.append(Message.user(SECRET, label=SECRET, key=SECRET))
    store.search(SECRET)
    with pytest.raises(hitherto.HithertoError):
        store.search('"' + SECRET, role=SECRET, limit=-1)
    store.purge(talk, reason="user-requested")
    assert "hitherto.purge" in watched.everything()  # the control: something was told
    assert SECRET not in watched.everything()


def test_conflicts_are_counted_by_their_kind(tmp_path: Path, watched: Watched) -> None:
    with hitherto.open(tmp_path / "store.db") as one, hitherto.open(tmp_path / "store.db") as two:
        talk = one.start()
        other = two.conversation(talk.id)
        talk.append(Message.user("a"))
        other.append(Message.user("b"))
        with pytest.raises(hitherto.Conflict):
            talk.append(Message.user("c"), on_conflict="raise")
    found = {str(point["kind"]): point["total"] for point in watched.points("hitherto.conflicts")}
    assert found == {"stale": 2, "head": 1}  # the one who was refused had tried


def test_a_purge_is_counted_and_noted_in_its_span_when_it_is_complete(store: Store, watched: Watched) -> None:
    """D9: `privacy.purge.completed`."""
    for reason in ("user-requested", "privacy-policy-change"):
        store.purge(store.start(), reason=reason)
    for name in ("privacy.purge.completed", "hitherto.purges"):
        assert {(point["reason"], point["total"]) for point in watched.points(name)} == {
            ("user-requested", 1),
            ("privacy-policy-change", 1),
        }
    noted = [event for span in watched.spans("hitherto.purge") for event in span.events]
    assert [event.name for event in noted] == ["privacy.purge.completed"] * 2
    assert dict(noted[1].attributes or {}) == {"reason": "privacy-policy-change", "purged_count": 1}


def test_a_purge_that_is_delayed_is_not_counted_yet(
    store: Store, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(type(store.backend), "scrub", lambda _: False)
        assert store.purge(store.start(), reason="user-requested").scrub_pending
        assert watched.points("privacy.purge.completed") == []
    assert store.scrub()
    assert [point["total"] for point in watched.points("privacy.purge.completed")] == [1]


def test_sweeps_and_searches_have_spans(store: Store, watched: Watched) -> None:
    store.start().append(Message.user("a"))
    store.search("a")
    store.sweep(RetentionPolicy(days=7), now=to_datetime(store.engine.clock()) + timedelta(days=8))
    assert len(watched.spans("hitherto.search")) == len(watched.spans("hitherto.sweep")) == 1
    assert [point["total"] for point in watched.points("hitherto.sweeps")] == [1]
    assert [(point["reason"], point["total"]) for point in watched.points("hitherto.purges")] == [
        ("retention-expired", 1)
    ]


def test_of_an_error_only_its_kind_is_told(store: Store, watched: Watched) -> None:
    talk = store.start()
    talk.hold()
    with pytest.raises(hitherto.Held):
        store.purge(talk, reason="user-requested")
    (span,) = watched.spans("hitherto.purge")
    assert (span.attributes or {})["error.type"] == "Held"
    assert span.events == ()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "Held")


def test_a_span_of_what_went_well_has_no_status(store: Store, watched: Watched) -> None:
    store.start().append(Message.user("a"))
    (span,) = watched.spans("hitherto.append")
    assert span.status.status_code is StatusCode.UNSET


def test_how_many_stores_are_suspended_is_known(tmp_path: Path, watched: Watched) -> None:
    with FaultDisk(tmp_path) as disk:
        store = hitherto.open(tmp_path / "store.db", vfs=disk.name, maintenance=False)
        talk = store.start()
        disk.fail(disk.operations + 1, lasting=True)
        for _ in range(5):
            with pytest.raises(StorageError):
                talk.append(Message.user("x"))
        states = {str(point["state"]): point["total"] for point in watched.points("hitherto.breaker.state")}
        assert states == {"open": 1}
        disk.heal()
        store.close()
    assert {point["total"] for point in watched.points("hitherto.breaker.state")} == {0}
    failed = [point for point in watched.points("db.client.operation.duration") if "error.type" in point]
    assert {(point["db.operation.name"], point["error.type"]) for point in failed} == {
        ("commit", "StorageError"),
        ("append", "StorageError"),
    }


def test_a_recorded_answer_is_told_by_the_conventions_for_genai(store: Store, watched: Watched) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    with provider(lambda _: {**chat_answer(SECRET), "usage": usage}) as server:
        config = Config("openai-compatible", "tiny", server.url + "/v1", "k", allow_insecure_base_url=True)
        client = hitherto.record(new_client(config), store)
        client.chat(SECRET)
        recording = hitherto.recording(client)
        assert recording is not None
        talk = recording.conversation
        assert talk is not None
        recording.close()
        client.close()
    (span,) = watched.spans("chat tiny")
    about = dict(span.attributes or {})
    assert span.kind is SpanKind.CLIENT
    assert about[gen_ai.GEN_AI_OPERATION_NAME] == "chat"
    assert about[gen_ai.GEN_AI_PROVIDER_NAME] == "openai-compatible"
    assert about[gen_ai.GEN_AI_REQUEST_MODEL] == "tiny"
    assert about[gen_ai.GEN_AI_CONVERSATION_ID] == talk.id
    assert about[gen_ai.GEN_AI_USAGE_INPUT_TOKENS] == 7
    assert about[gen_ai.GEN_AI_USAGE_OUTPUT_TOKENS] == 3
    assert span.start_time is not None
    assert span.end_time is not None
    assert 0 < span.end_time - span.start_time < 60e9
    tokens = {point[gen_ai.GEN_AI_TOKEN_TYPE]: point["total"] for point in watched.points("gen_ai.client.token.usage")}
    assert tokens == {"input": 7, "output": 3}
    assert [point["count"] for point in watched.points("gen_ai.client.operation.duration")] == [1]
    assert SECRET not in watched.everything()


# -- it disturbs nobody


class _Broken(SpanProcessor):
    def on_start(self, span: object, parent_context: object = None) -> None:
        raise RuntimeError(SECRET)


class _NoNetwork(SpanExporter):
    def export(self, spans: object) -> SpanExportResult:
        raise OSError("no network")


def test_an_sdk_or_an_exporter_that_fails_never_breaks_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    meters, tracers = MeterProvider(), TracerProvider()
    tracers.add_span_processor(_Broken())
    tracers.add_span_processor(SimpleSpanProcessor(_NoNetwork()))
    broken = telemetry.Instruments(meters.get_meter("hitherto"), tracers.get_tracer("hitherto"))
    monkeypatch.setattr(broken, "record", _fail)
    monkeypatch.setattr(telemetry, "_instruments", broken)
    monkeypatch.setattr(telemetry, "_failed", False)
    with hitherto.open(tmp_path / "store.db") as store:
        talk = store.start()
        for n in range(3):
            talk.append(Message.user(f"m{n}"))
        store.search("m1")
        assert store.purge(talk, reason="user-requested").purged_count == 1
    assert caplog.text.count("telemetry failed") == 1
    assert SECRET not in caplog.text


def _fail(*_: object) -> None:
    raise RuntimeError(SECRET)


def _run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


USE = """
import sys, hitherto
{first}
with hitherto.open("memory:") as store:
    store.start().append(hitherto.Message.user("a"))
    {then}
    store.start().append(hitherto.Message.user("a"))
print({last})
"""
READ = "[m.name for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics for m in s.metrics]"
SDK = """
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
"""


def test_nobody_who_does_not_use_it_loads_it() -> None:
    loaded = "[name for name in sys.modules if name.startswith('opentelemetry')]"
    assert _run(USE.format(first="", then="", last=loaded)) == "[]"


def test_a_program_that_loads_it_later_is_served_from_then_on() -> None:
    assert "'hitherto.commit.duration'" in _run(USE.format(first="", then=SDK.strip(), last=READ))


def test_the_api_alone_costs_nothing_until_a_provider_is_set() -> None:
    """Libraries load it for programs that watch nothing."""
    program = USE.format(
        first="from opentelemetry import metrics, trace; from hitherto import telemetry",
        then="print(telemetry._instruments, store.engine.telemetry.is_on)\n    telemetry._look_at = 0.0" + SDK.rstrip(),
        last="telemetry._instruments is not None, " + READ,
    )
    first, second = _run(program).splitlines()
    assert first == "None False"
    assert second.startswith("True [")
    assert "'hitherto.commit.duration'" in second


def test_it_says_which_version_measures() -> None:
    read = "{s.scope.version for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics}"
    assert _run(USE.format(first="", then=SDK.strip(), last=read)) == str({hitherto.__version__})


def test_it_looks_again_now_and_then() -> None:
    first = "from opentelemetry import trace; from hitherto import telemetry; import time; began = time.monotonic()"
    looked = "began < telemetry._look_at <= time.monotonic() + 0.1"
    assert _run(USE.format(first=first, then="", last=looked)) == "True"


def test_it_can_be_switched_off() -> None:
    program = USE.format(first="", then=SDK.strip(), last="reader.get_metrics_data()")
    assert _run(program, HITHERTO_TELEMETRY="0") == "None"


def test_every_name_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    names = {*telemetry.HISTOGRAMS, *telemetry.COUNTERS, *telemetry.STATES}
    names |= {f"hitherto.{name}" for name in ("append", "search", "purge", "sweep")}
    assert [name for name in sorted(names) if f"`{name}`" not in page] == []


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: a program has one provider."""
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    monkeypatch.chdir(tmp_path)
    shown = _run(page.split("```python\n")[1].split("```")[0])
    assert "privacy.purge.completed" in shown


# -- slow commits


def test_a_slow_disk_is_said_once_counted_and_told(
    tmp_path: Path, watched: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D13. What is slow is measured, so that a busy machine may be: the limit counts from the slow ones on."""
    with FaultDisk(tmp_path) as disk, hitherto.open(tmp_path / "store.db", vfs=disk.name, maintenance=False) as store:
        heard: list[Event] = []
        store.subscribe(heard.append)
        talk = store.start()
        quick = [talk.append(Message.user("quick")) for _ in range(20)]
        assert len(quick) == 20
        assert watched.points("hitherto.commit.slow") == []
        monkeypatch.setattr(breaker, "SLOW_SECONDS", 0.15)
        disk.syncing = lambda: time.sleep(0.16)
        for _ in range(4):
            talk.append(Message.user("slow"))
        assert store.wait_for_listeners()
        (slow,) = [event for event in heard if isinstance(event, SlowCommit)]
        assert slow.p95_seconds > slow.limit_seconds == 0.15
        disk.syncing = lambda: None
    assert caplog.text.count("commits are slow") == 1
    assert [point["total"] for point in watched.points("hitherto.commit.slow")] == [1]
