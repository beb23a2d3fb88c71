"""ServiceHost starts, retries and stops a service; errors are reported and never raised in a constructor."""

from __future__ import annotations

import errno
import threading

import pytest
import structlog

from actors.host.service_host import (
    EXIT_RESTART,
    EXIT_SERVICE_FAILED,
    EXIT_START_FAILED,
    NotServing,
    ServiceHost,
    State,
)
from store.store_errors import StoreError, StoreLocked
from tests.eventually import LIMIT_S, eventually


class FakeService:
    """Raises each of `failures` at a start, then serves."""

    def __init__(self, failures: list[Exception]) -> None:
        self._failures = failures
        self.stops = 0
        self.loop_thread: threading.Thread | None = None

    async def start(self) -> None:
        self.loop_thread = threading.current_thread()
        if self._failures:
            raise self._failures.pop(0)

    async def stop(self) -> None:
        self.stops += 1


def test_calls_run_on_the_thread_of_the_service() -> None:
    service = FakeService([])
    host = ServiceHost(lambda: service)
    eventually(lambda: host.is_serving)
    assert host.call(threading.current_thread, timeout_s=LIMIT_S) is service.loop_thread
    assert service.loop_thread is not threading.current_thread()
    host.stop()
    assert (host.state, service.stops) == (State.STOPPED, 1)
    host.stop()
    assert service.stops == 1


def test_port_or_lock_in_use_is_retried() -> None:
    service = FakeService(
        [
            OSError(errno.EADDRINUSE, "Address already in use"),
            StoreLocked("is locked by another process, PID 1", "/s"),
        ]
    )
    host = ServiceHost(lambda: service, retry_s=0.001)
    eventually(lambda: host.is_serving)
    assert host.reason == ""
    host.stop()


def test_permanent_start_error_becomes_the_reason() -> None:
    service = FakeService([StoreError("belongs to another broker", "/store/raymq.json")])
    host = ServiceHost(lambda: service)
    eventually(lambda: host.state is State.NOT_SERVING)
    assert host.reason == "/store/raymq.json: belongs to another broker"
    with pytest.raises(NotServing, match=r"not serving: /store/raymq.json: belongs to another broker"):
        host.call(lambda: None)
    host.stop()


def test_bug_during_start_becomes_the_reason() -> None:
    host = ServiceHost(lambda: FakeService([ZeroDivisionError("division by zero")]))
    eventually(lambda: host.state is State.NOT_SERVING)
    assert host.reason == "ZeroDivisionError: division by zero"
    host.stop()


def test_process_exits_at_the_start_deadline() -> None:
    codes: list[int] = []
    busy = [OSError(errno.EADDRINUSE, "Address already in use") for _ in range(50)]
    service = FakeService(busy)
    host = ServiceHost(lambda: service, start_deadline_s=0.0, retry_s=0.001, exit_process=codes.append)
    eventually(lambda: bool(codes))
    assert codes[0] == EXIT_START_FAILED
    assert "Address already in use" in host.reason
    host.stop()


def test_failed_service_is_stopped_and_the_process_exits() -> None:
    codes: list[int] = []
    service = FakeService([])
    host = ServiceHost(lambda: service, exit_process=codes.append)
    eventually(lambda: host.is_serving)

    def fail_twice() -> None:
        host.fail("task sweep failed 10 times in a row")
        host.fail("task deliver failed 10 times in a row")

    with structlog.testing.capture_logs() as logs:
        host.call(fail_twice)
        eventually(lambda: bool(codes))
    assert (codes, service.stops) == ([EXIT_SERVICE_FAILED], 1)
    assert (host.state, host.reason) == (State.NOT_SERVING, "task sweep failed 10 times in a row")
    assert [line["event"] for line in logs] == ["service_failed"]
    host.stop()
    assert service.stops == 1


def test_requested_restart_stops_the_service_and_is_not_logged_as_an_error() -> None:
    codes: list[int] = []
    service = FakeService([])
    host = ServiceHost(lambda: service, exit_process=codes.append)
    eventually(lambda: host.is_serving)
    with structlog.testing.capture_logs() as logs:
        host.call(host.restart, "restart requested by 10.0.0.1:5")
        eventually(lambda: bool(codes))
    assert (codes, service.stops) == ([EXIT_RESTART], 1)
    assert [(line["event"], line["log_level"]) for line in logs] == [("service_restarting", "info")]
    host.stop()


def test_process_exits_if_a_failed_service_cannot_stop() -> None:
    class Stuck(FakeService):
        async def stop(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    codes: list[int] = []
    host = ServiceHost(lambda: Stuck([]), exit_process=codes.append)
    eventually(lambda: host.is_serving)
    host.call(host.fail, "task sweep failed 10 times in a row")
    eventually(lambda: codes == [EXIT_SERVICE_FAILED])
    assert host.reason == "task sweep failed 10 times in a row"
    host.stop()


def test_slow_call_times_out() -> None:
    host = ServiceHost(lambda: FakeService([]))
    eventually(lambda: host.is_serving)
    release = threading.Event()
    with pytest.raises(TimeoutError, match=r"the service's event loop did not respond within 0.01 s"):
        host.call(release.wait, timeout_s=0.01)
    release.set()
    host.stop()


def test_start_on_a_full_disk_is_retried_with_the_reason() -> None:
    full = StoreError("cannot be made: No space left on device (make room on its disk)", "/s")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    another = StoreLocked("is locked by another process, PID 1", "/s")
    service = FakeService([full, full, another])
    states: list[str] = []
    hosts: list[ServiceHost] = []
    has_host = threading.Event()

    def make() -> FakeService:
        has_host.wait(LIMIT_S)
        states.append(f"{hosts[0].state}: {hosts[0].reason}")
        return service

    hosts.append(ServiceHost(make, retry_s=0.001, full_disk_retry_s=0.001))
    has_host.set()
    (host,) = hosts
    eventually(lambda: host.is_serving)
    cause = "not serving: /s: cannot be made: No space left on device (make room on its disk)"
    assert states[1:3] == [cause, cause]
    assert host.reason == ""
    host.stop()


def test_stop_ends_the_retries_on_a_full_disk() -> None:
    service = FakeService([OSError(errno.ENOSPC, "No space left on device")])
    host = ServiceHost(lambda: service, full_disk_retry_s=60.0)
    eventually(lambda: host.state is State.NOT_SERVING)
    host.stop()
    assert host.state is State.STOPPED
