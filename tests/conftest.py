"""What several test files need."""

import os
import signal
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import settings

import hitherto
from hitherto import Store
from hitherto._engine import breaker

from .support.cloud import NO_AZURITE, Azurite, Moto, started_azurite, started_moto
from .support.command import Open, Service, Terminal, World, environment
from .support.forked import Forker
from .support.memory import in_memory
from .support.thorough import examples

_trusted = tempfile.TemporaryDirectory(prefix="hitherto-trusted-")


# No deadline: how long an example takes says how busy the machine is.
settings.register_profile("hitherto", deadline=None, max_examples=examples())
settings.load_profile("hitherto")


def pytest_configure(config: pytest.Config) -> None:
    trust_nobody()
    if hasattr(config, "workerinput"):
        # `make gates` measures the processes that run tests. Those that tests start are not measured: there are
        # hundreds of them, and each would take longer.
        os.environ.pop("COVERAGE_PROCESS_START", None)
    # A shell that starts the tests in the background has them ignore Ctrl+C, and tests press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    breaker.SLOW_SECONDS = 60.0  # a busy machine is no slow disk, and no test wants to hear that it is one
    # The local model's threads wait for each other. Where other tests have the processors meanwhile, they would keep
    # them busy with waiting, and take several times as long.
    os.environ["OMP_WAIT_POLICY"] = "passive"


def trust_nobody() -> None:
    """Nobody on the network is trusted: the one certificate is of nobody. It is also quick to load, where the usual
    hundred and more take most of the time that making an SDK's client takes, and the tests make thousands."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    path = Path(_trusted.name) / "nobody.pem"
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    os.environ["SSL_CERT_FILE"] = str(path)


def pytest_unconfigure() -> None:
    _trusted.cleanup()


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if the machine has one. Nobody cuts the real power while the tests run (where it matters,
    the disk is simulated), and thousands of stores that wait for a real one to sync would take minutes."""
    memory = in_memory()
    if memory is None:
        yield tmp_path
    else:
        # What a test's process still writes while it ends is no failure of the test.
        with tempfile.TemporaryDirectory(prefix="hitherto-", dir=memory, ignore_cleanup_errors=True) as directory:
            yield Path(directory)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The same, for tests that simulate the disk themselves."""
    return tmp_path


@pytest.fixture
def moto() -> Moto:
    """S3 on this machine; one for all tests of a process."""
    return started_moto()


@pytest.fixture
def azurite() -> Azurite:
    """Azure on this machine, where it is installed."""
    server = started_azurite()
    if server is None:
        pytest.skip(NO_AZURITE)
    return server


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """The process that commands are forked from; one for all tests of a process."""
    made = Forker(environment())
    yield made
    made.close()


@pytest.fixture
def world(tmp_path: Path, forker: Forker) -> Iterator[World]:
    """A folder, a home and a store to run commands in."""
    service = Service()
    yield World(tmp_path, service, forker)
    service.close()


@pytest.fixture
def terminal(world: World) -> Iterator[Open]:
    """Opens pseudo-terminals."""
    opened: list[Terminal] = []

    def open_one(*given: str, **how: Any) -> Terminal:
        opened.append(Terminal(world, *given, **how))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory. Tests of several backends have a fixture of this name of their own."""
    with hitherto.open("memory:") as store:
        yield store
