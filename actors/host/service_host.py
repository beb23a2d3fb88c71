"""ServiceHost: the lifetime of a service inside an actor's process: its loop, start, state and stop.

    STARTING ──start()──> SERVING ──stop()──> STOPPED
        │                    └─ fail(reason) ──> NOT_SERVING: the service stops, then Ray makes a new process
        │ held by another (port, store's lock): retried until the deadline, then Ray makes a new process
        │ no space on the disk ──> NOT_SERVING with the reason, retried every 5 s until there is space
        └─ anything else ──> NOT_SERVING with the reason, until an operator acts

An exception in an actor's constructor during a restart ends that actor for ever, so nothing here raises in
a constructor: `state` and `reason` report what is wrong.
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
from store.logs import get_logger
from store.store_errors import StoreError, StoreLocked

Result = TypeVar("Result")

START_DEADLINE_S = 60.0
RETRY_S = 0.25
FULL_DISK_RETRY_S = 5.0
CALL_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 30.0
EXIT_START_FAILED = 17
EXIT_LOOP_DIED = 18
EXIT_SERVICE_FAILED = 19

log = get_logger(__name__)


class State(StrEnum):
    """The state of a service."""

    STARTING = "starting"
    SERVING = "serving"
    NOT_SERVING = "not serving"
    STOPPED = "stopped"


class Service(Protocol):
    """What a host runs; both methods run on the host's loop."""

    async def start(self) -> None:
        """Begin to serve. Raises OSError or StoreError."""
        ...

    async def stop(self) -> None:
        """Finish the requests in progress, flush, and release ports and files."""
        ...


class NotServing(Exception):
    """The service is not serving; the message has its state and the reason."""


class ServiceHost:
    """Runs one service on a uvloop in a thread of its own, and runs calls of other threads on that loop."""

    def __init__(
        self,
        make: Callable[[], Service],
        *,
        start_deadline_s: float = START_DEADLINE_S,
        retry_s: float = RETRY_S,
        full_disk_retry_s: float = FULL_DISK_RETRY_S,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
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
        self._leave = leave
        self._ending: asyncio.Task[None] | None = None
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
        """Run `function` on the service's loop; returns its result. Raises NotServing, TimeoutError."""

        async def run() -> Result:
            return function(*arguments)

        return self.call_async(run, timeout_s=timeout_s)

    def call_async(
        self, function: Callable[[], Coroutine[object, object, Result]], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Result:
        """Run the coroutine of `function` on the service's loop; raises NotServing, TimeoutError."""
        if self.state is not State.SERVING:
            raise NotServing(f"{self.state}: {self.reason or 'not yet up'}")
        return self._post(function(), timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the service in order, once. Raises TimeoutError, or what the service raised."""
        if self.state is State.STOPPED:
            return
        service, self.state = self.service, State.STOPPED
        if service is not None:
            self._post(service.stop(), timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def fail(self, reason: str) -> None:
        """Stop the service in order and end the process, so that Ray starts another; called on the loop."""
        if self._ending is not None or self._is_stopped():
            return
        service, self.service = self.service, None
        self.state, self.reason = State.NOT_SERVING, reason
        log.error("service_failed", reason=reason)
        self._ending = self._loop.create_task(self._end(service))

    async def _end(self, service: Service | None) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._stop_failed(service)
        except TimeoutError:
            log.warning("service_stop_failed", after_s=STOP_TIMEOUT_S)
        self._leave(EXIT_SERVICE_FAILED)

    def _post(self, coroutine: Coroutine[object, object, Result], timeout_s: float) -> Result:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(f"no answer from the service's loop in {timeout_s:g} s") from None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.create_task(self._bring_up())
            self._loop.run_forever()
        finally:
            if self.state is not State.STOPPED:
                log.error("service_loop_failed", state=str(self.state), reason=self.reason)
                self._leave(EXIT_LOOP_DIED)

    async def _bring_up(self) -> None:
        deadline_s = time.monotonic() + self._start_deadline_s
        while self.state in (State.STARTING, State.NOT_SERVING):
            service: Service | None = None
            try:
                service = self._make()
                await service.start()
            # Any error: raised in a constructor it would end the actor for ever.
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
                garbage.settle()
                log.info("service_serving", code_version=self.code_version, pid=os.getpid())
                return
            if time.monotonic() > deadline_s:
                log.error("service_start_timed_out", reason=self.reason, after_s=self._start_deadline_s)
                self._leave(EXIT_START_FAILED)
                return
            await asyncio.sleep(self._retry_s)

    def _is_stopped(self) -> bool:
        """Return True if another thread has stopped the host meanwhile."""
        return self.state is State.STOPPED

    def _note_failure(self, error: Exception) -> None:
        """Log a failed start once, unless another process holds a port or lock that it may release soon."""
        reason = describe_error(error)
        if not is_held_by_another(error) and not self._is_stopped():
            if (self.state, self.reason) != (State.NOT_SERVING, reason):
                log.error("service_start_failed", reason=reason, exc_info=error)
            self.state = State.NOT_SERVING
        self.reason = reason

    async def _stop_failed(self, service: Service | None) -> None:
        """Stop a service that failed, at its start or later: the next one opens ports and files anew."""
        if service is None:
            return
        try:
            await service.stop()
        # What failed may fail again while it stops; the first reason is what counts.
        except Exception:
            log.warning("service_stop_failed", exc_info=True)


def is_held_by_another(error: BaseException) -> bool:
    """Return True if a retry may succeed: another process still holds a port or a store."""
    if isinstance(error, OSError):
        return error.errno in (errno.EADDRINUSE, errno.EAGAIN)
    return isinstance(error, StoreLocked)


def is_full_disk(error: BaseException) -> bool:
    """Return True if an error is a full disk, or was caused by one."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        seen = seen.__cause__
    return False


def describe_error(error: BaseException) -> str:
    """Return one line on an error, with its type unless it is a StoreError."""
    text = str(error) or type(error).__name__
    return text if isinstance(error, StoreError) else f"{type(error).__name__}: {text}"
