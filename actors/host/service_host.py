"""ServiceHost: runs a service in an actor's process, on an event loop in a thread.

    STARTING ──start()──> SERVING ──stop()──> STOPPED
        │                    └─ fail(reason) or restart(reason) ──> NOT_SERVING: the process exits and Ray
        │                                                           restarts the actor
        │ port or store in use: retried until the deadline, then the process exits and Ray restarts the actor
        │ disk full ──> NOT_SERVING with the reason, retried every 5 s
        └─ any other error ──> NOT_SERVING with the reason, until an operator acts

Ray never restarts an actor whose constructor raises during a restart. So an error of the start is not raised:
it is in `state` and `reason`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Protocol, TypeVar

import uvloop

from actors.host import garbage
from actors.host.code_version import code_version
from store.common.logs import get_logger
from store.store_errors import StoreError, StoreLocked

Result = TypeVar("Result")

START_DEADLINE_S = 60.0
RETRY_S = 0.25
FULL_DISK_RETRY_S = 5.0
CALL_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 30.0
EXIT_START_FAILED = 17
EXIT_LOOP_FAILED = 18
EXIT_SERVICE_FAILED = 19
EXIT_RESTART = 20

_log = get_logger(__name__)


class State(StrEnum):
    """The state of a service."""

    STARTING = "starting"
    SERVING = "serving"
    NOT_SERVING = "not serving"
    STOPPED = "stopped"


class Service(Protocol):
    """A service that a host runs; both methods run on the host's event loop."""

    async def start(self) -> None:
        """Start to serve. Raises OSError or StoreError if that is not possible."""

    async def stop(self) -> None:
        """Finish the requests in progress, flush, and release ports and files."""


class NotServing(Exception):
    """The service is not serving; the message has its state and the reason."""


class ServiceHost:
    """Runs one service on a uvloop event loop in a separate thread; other threads call it through `call`."""

    def __init__(
        self,
        make: Callable[[], Service],
        *,
        start_deadline_s: float = START_DEADLINE_S,
        retry_s: float = RETRY_S,
        full_disk_retry_s: float = FULL_DISK_RETRY_S,
        exit_process: Callable[[int], None] = os._exit,
    ) -> None:
        """Start the thread and the service.

        Args:
            make: creates the service; called again for each attempt to start.
            start_deadline_s: how long a port or store in use is retried before the process exits.
            retry_s: time between these attempts.
            full_disk_retry_s: time between attempts while the disk is full.
            exit_process: ends the process with an exit code.
        """
        self.state = State.STARTING
        self.reason = ""
        self.service: Service | None = None
        self.started_ms = int(time.time() * 1000)
        self.serving_ms = 0
        self.code_version = code_version()
        self._make = make
        self._start_deadline_s = start_deadline_s
        self._retry_s = retry_s
        self._full_disk_retry_s = full_disk_retry_s
        self._exit_process = exit_process
        self._exiting: asyncio.Task[None] | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="service-loop", daemon=True)
        self._thread.start()

    @property
    def is_serving(self) -> bool:
        """Return True while calls are accepted."""
        return self.state is State.SERVING

    def call(
        self, function: Callable[..., Result], *arguments: object, timeout_s: float = CALL_TIMEOUT_S
    ) -> Result:
        """Run `function` on the service's loop and return its result. Raises NotServing or TimeoutError."""

        async def run() -> Result:
            return function(*arguments)

        return self.call_async(run, timeout_s=timeout_s)

    def call_async(
        self, function: Callable[[], Coroutine[object, object, Result]], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Result:
        """Run the coroutine `function()` on the service's loop. Raises NotServing or TimeoutError."""
        if self.state is not State.SERVING:
            raise NotServing(f"{self.state}: {self.reason or 'the start has not finished'}")
        return self._post(function(), timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the service and the thread; does nothing if already stopped.

        Raises TimeoutError; an exception of the service's `stop` propagates.
        """
        if self.state is State.STOPPED:
            return
        service, self.state = self.service, State.STOPPED
        if service is not None:
            self._post(service.stop(), timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def fail(self, reason: str) -> None:
        """Stop the service and exit the process, so that Ray restarts the actor; called on the loop."""
        self._exit(EXIT_SERVICE_FAILED, reason)

    def restart(self, reason: str) -> None:
        """Like `fail`, if an administrator wants a restart."""
        self._exit(EXIT_RESTART, reason)

    def _exit(self, code: int, reason: str) -> None:
        if self._exiting is not None or self._is_stopped():
            return
        service, self.service = self.service, None
        self.state, self.reason = State.NOT_SERVING, reason
        if code == EXIT_RESTART:
            _log.info("service_restarting", reason=reason)
        else:
            _log.error("service_failed", reason=reason)
        self._exiting = self._loop.create_task(self._exit_after_stop(service, code))

    async def _exit_after_stop(self, service: Service | None, code: int) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._stop_failed(service)
        except TimeoutError:
            _log.warning("service_stop_failed", timeout_s=STOP_TIMEOUT_S)
        self._exit_process(code)

    def _post(self, coroutine: Coroutine[object, object, Result], timeout_s: float) -> Result:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(f"the service's event loop did not respond within {timeout_s:g} s") from None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.create_task(self._start_service())
            self._loop.run_forever()
        finally:
            if self.state is not State.STOPPED:
                _log.error("service_loop_failed", state=str(self.state), reason=self.reason)
                self._exit_process(EXIT_LOOP_FAILED)

    async def _start_service(self) -> None:
        deadline_s = time.monotonic() + self._start_deadline_s
        while self.state in (State.STARTING, State.NOT_SERVING):
            service: Service | None = None
            try:
                service = self._make()
                await service.start()
            # Any error: Ray never restarts an actor whose constructor raises.
            except Exception as error:  # noqa: BLE001 - logged by `_note_failure`
                self._note_failure(error)
                await self._stop_failed(service)
                if is_full_disk(error):
                    await asyncio.sleep(self._full_disk_retry_s)
                    deadline_s = time.monotonic() + self._start_deadline_s
                    continue
                if not is_held_by_another(error):
                    return
            else:
                if self._is_stopped():
                    await self._stop_failed(service)
                    return
                self.service, self.reason, self.state = service, "", State.SERVING
                self.serving_ms = int(time.time() * 1000)
                garbage.freeze()
                _log.info("service_serving", code_version=self.code_version, pid=os.getpid())
                return
            if time.monotonic() > deadline_s:
                _log.error("service_start_timed_out", reason=self.reason, timeout_s=self._start_deadline_s)
                self._exit_process(EXIT_START_FAILED)
                return
            await asyncio.sleep(self._retry_s)

    def _is_stopped(self) -> bool:
        """Return True if another thread has stopped the host in the meantime."""
        return self.state is State.STOPPED

    def _note_failure(self, error: Exception) -> None:
        """Record the reason of a failed start; log it once, unless the port or store may soon be released."""
        reason = describe_error(error)
        if not is_held_by_another(error) and not self._is_stopped():
            if (self.state, self.reason) != (State.NOT_SERVING, reason):
                _log.error("service_start_failed", reason=reason, exc_info=error)
            self.state = State.NOT_SERVING
        self.reason = reason

    async def _stop_failed(self, service: Service | None) -> None:
        """Stop a failed service, because the next one needs its ports and files."""
        if service is None:
            return
        try:
            await service.stop()
        # A failed service may also fail to stop; `reason` keeps the first error.
        except Exception:  # noqa: BLE001 - logged
            _log.warning("service_stop_failed", exc_info=True)


def is_held_by_another(error: BaseException) -> bool:
    """Return True if the port or the store is in use by another process, so that a retry may succeed."""
    if isinstance(error, OSError):
        return error.errno in (errno.EADDRINUSE, errno.EAGAIN)
    return isinstance(error, StoreLocked)


def is_full_disk(error: BaseException) -> bool:
    """Return True if the error, or one of its causes, is a full disk or an exceeded quota."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        seen = seen.__cause__
    return False


def describe_error(error: BaseException) -> str:
    """Return the text of an error, with its type unless it is a StoreError."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, StoreError) else f"{type(error).__name__}: {text}"
