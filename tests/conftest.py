"""What every test may ask for: fresh copies of the stores that RocketMQ 5.3.3 wrote, and a clock at rest."""

from __future__ import annotations

import signal
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer

from tests.workers import GroupScheduling

# Examples have no deadline: the machine is shared, and the first call of a kernel may compile it.
settings.register_profile("raymq", deadline=None)
settings.load_profile("raymq")

# A runner in the background ignores SIGINT, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

FIXTURES = Path(__file__).parent / "fixtures"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    """Where several workers run the tests (``-n 2``)."""
    return GroupScheduling(config, log)


@pytest.fixture(autouse=True)
def _events_are_told_as_before() -> Iterator[None]:
    """`structlog.testing.capture_logs` leaves structlog configured, which is a program's own choice to us."""
    yield
    structlog.reset_defaults()


@dataclass(frozen=True)
class RocketStore:
    """A store directory as the Java broker left it, and what RocketMQ itself reads in it."""

    root: Path
    broker_conf: Path
    expected: Path
    expected_keys: Path


def unpack_store(ending: str, into: Path) -> RocketStore:
    """Unpack the fixture that ended ``clean`` or ``crashed`` below `into`."""
    with tarfile.open(FIXTURES / f"rocketmq-5.3.3-{ending}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    top = into / ending
    return RocketStore(
        top / "store", top / "broker.conf", top / "expected.jsonl", top / "expected-keys.jsonl"
    )


@pytest.fixture
def clean_store(tmp_path: Path) -> Callable[[], RocketStore]:
    """Give a fresh copy of the store that was shut down in order."""
    return lambda: unpack_store("clean", tmp_path)


@pytest.fixture
def crashed_store(tmp_path: Path) -> Callable[[], RocketStore]:
    """Give a fresh copy of the store whose broker was killed while a producer was sending."""
    return lambda: unpack_store("crashed", tmp_path)


class ClockAtRest:
    """A `store.clock.Clock` that moves only when the test says so."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ns = 0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, ms: int = 0, *, us: int = 0) -> None:
        self._wall_ms += ms
        self._monotonic_ns += ms * 1_000_000 + us * 1_000

    def set_wall_ms(self, wall_ms: int) -> None:
        """Let the wall clock jump while monotonic time stays."""
        self._wall_ms = wall_ms


@pytest.fixture
def clock() -> ClockAtRest:
    """Give a clock at rest."""
    return ClockAtRest()
