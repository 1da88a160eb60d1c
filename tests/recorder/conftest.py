"""A provider that most tests of recorders talk to."""

from collections.abc import Iterator

import pytest

from ..support.provider import Provider, provider
from .test_recorder import speak


@pytest.fixture
def parrot() -> Iterator[Provider]:
    """Answers `a1`, `a2`, …, whatever it is asked."""
    with provider(lambda asked: speak(asked, f"a{len(server.asked)}")) as server:
        yield server
