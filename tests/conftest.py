"""Shared fixtures (RocketMQ's stores, a clock at rest) and the hooks that divide, repeat and report tests."""

from __future__ import annotations

import os
import signal
import tarfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from store import logs
from tests.eventually import TIME_SCALE
from tests.process_logs import log_tails
from tests.tiers import LANES, LaneScheduling, in_lane_order, is_repeatable, lane_of

# No health check or deadline that depends on the machine: the first call of a kernel may compile it.
settings.register_profile("raymq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("raymq")

# A runner in the background ignores SIGINT, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Scale pytest's own limit for a test."""
    if config.option.timeout is None:
        config.option.timeout = float(config.getini("timeout")) * TIME_SCALE


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker for each lane and each core; none if files are named, as there is nothing to share out."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return 0
    return len(LANES) + (os.cpu_count() or 1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LaneScheduling:
    """Schedule by lanes and files."""
    return LaneScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the lanes first, and let system and extended tests be repeated once."""
    items[:] = in_lane_order(items)
    for item in items:
        if is_repeatable(item):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the processes that a failed test started or used."""
    report = yield
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        for path, tail in log_tails(_temporary_roots, time.time() - call.duration - 1):
            report.sections.append((f"last lines of {path}", tail))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seconds of each lane and of the unit tests, and each repeated test, a defect to mend."""
    reports = [each for kind in terminalreporter.stats.values() for each in kind if hasattr(each, "start")]
    for name in ("unit", *LANES):
        times = [(each.start, each.stop) for each in reports if (lane_of(each.nodeid) or "unit") == name]
        if times:
            elapsed_s = max(stop for _, stop in times) - min(start for start, _ in times)
            terminalreporter.write_line(f"{name}: {elapsed_s:.0f} s")
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.write_line(f"flaky: {report.nodeid}")


_temporary_roots: list[Path] = []


@pytest.fixture(scope="session", autouse=True)
def _temporary_root(tmp_path_factory: pytest.TempPathFactory) -> None:
    _temporary_roots.append(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def _our_loggers_are_captured() -> Iterator[None]:
    """Let `structlog.testing.capture_logs` capture the events of our loggers."""
    structlog.configure(processors=logs.PROCESSORS)
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
