"""Shared fixtures (RocketMQ's stores, a manual clock) and hooks that schedule, repeat and report tests."""

from __future__ import annotations

import os
import signal
import sys
import tarfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from store.common import logs
from tests.eventually import TIME_SCALE
from tests.process_logs import log_tails
from tests.tiers import LANES, LaneScheduling, in_lane_order, is_repeatable, lane_of

# No deadline and no "too slow" check: the first call of a kernel may compile it.
settings.register_profile("raymq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("raymq")

# A background test runner ignores SIGINT; the processes that tests start and interrupt must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Multiply pytest's timeout of a test by RAYMQ_TEST_TIME_SCALE."""
    if config.option.timeout is None:
        config.option.timeout = float(config.getini("timeout")) * TIME_SCALE


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return lanes plus cores, or 0 if the command line names files: those run in this process."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        return 0
    return len(LANES) + (os.cpu_count() or 1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LaneScheduling:
    """Schedule by lanes and files."""
    return LaneScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the lanes first, and mark system and extended tests for one rerun, unless `--reruns` is given."""
    items[:] = in_lane_order(items)
    for item in items:
        if is_repeatable(item) and config.option.reruns is None:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the processes of a failed test to its report."""
    report = yield
    if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        for path, tail in log_tails(_temporary_roots, call.start - 1):
            report.sections.append((f"last lines of {path}", tail))
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Disconnect from Ray after the lane "ray": commands in the tests that follow would use its cluster."""
    is_last = nextitem is not None and lane_of(nextitem.nodeid) != "ray"
    if lane_of(item.nodeid) == "ray" and is_last and "ray" in sys.modules:
        sys.modules["ray"].shutdown()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the duration of each lane and of the unit tests, and the tests that were repeated (flaky)."""
    reports = [each for kind in terminalreporter.stats.values() for each in kind if hasattr(each, "start")]
    for name in ("unit", *LANES):
        times = [(each.start, each.stop) for each in reports if (lane_of(each.nodeid) or "unit") == name]
        if times:
            elapsed_s = max(stop for _, stop in times) - min(start for start, _ in times)
            terminalreporter.write_line(f"{name}: {elapsed_s:.0f} s")
    for report in terminalreporter.stats.get("rerun", []):
        crash = getattr(report.longrepr, "reprcrash", None)
        terminalreporter.write_line(f"flaky: {report.nodeid}: {crash.message if crash else 'unknown'}")


_temporary_roots: list[Path] = []


@pytest.fixture(scope="session", autouse=True)
def _temporary_root(tmp_path_factory: pytest.TempPathFactory) -> None:
    _temporary_roots.append(tmp_path_factory.getbasetemp())


@pytest.fixture(autouse=True)
def _configure_log_capture() -> Iterator[None]:
    """Let `structlog.testing.capture_logs` capture the events of our loggers."""
    structlog.configure(processors=logs.PROCESSORS)
    yield
    structlog.reset_defaults()


@dataclass(frozen=True)
class RocketStore:
    """Store directory written by a Java broker, with the messages that RocketMQ itself reads from it."""

    root: Path
    broker_conf: Path
    expected: Path
    expected_keys: Path


def unpack_store(ending: str, into: Path) -> RocketStore:
    """Unpack the store fixture `ending` (``clean`` or ``crashed``) below `into`."""
    with tarfile.open(FIXTURES / f"rocketmq-5.3.3-{ending}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    top = into / ending
    return RocketStore(
        top / "store", top / "broker.conf", top / "expected.jsonl", top / "expected-keys.jsonl"
    )


@pytest.fixture
def clean_store(tmp_path: Path) -> Callable[[], RocketStore]:
    """Return a function that unpacks a copy of the store that was closed cleanly."""
    return lambda: unpack_store("clean", tmp_path)


@pytest.fixture
def crashed_store(tmp_path: Path) -> Callable[[], RocketStore]:
    """Return a function that unpacks a copy of the store whose broker was killed during sends."""
    return lambda: unpack_store("crashed", tmp_path)


class ClockAtRest:
    """Manual `store.common.clock.Clock`: its time changes only by `advance` and `set_wall_ms`."""

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
        """Set the wall time without changing the monotonic time."""
        self._wall_ms = wall_ms


@pytest.fixture
def clock() -> ClockAtRest:
    """Return a new manual clock."""
    return ClockAtRest()
