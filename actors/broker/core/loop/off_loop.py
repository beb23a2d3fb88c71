"""OffLoop: a thread pool for work that waits for the disk, with a bounded queue.

    run ──► waiting ──► running in a thread ──► its result or exception
     │         ├─ after `wait_ms` ► refused, SYSTEM_BUSY
     │         └─ stop ───────────► refused, SERVICE_NOT_AVAILABLE
     └─ the queue is full ────────► refused, SYSTEM_BUSY

A refusal has RocketMQ's remark, with the time waited, the length of the queue and the settings.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from actors.broker.core.loop.wait_registry import shutting_down
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.clock import NS_PER_MS, Clock

Result = TypeVar("Result")


class _Waiting(NamedTuple):
    since_ns: int
    turn: asyncio.Future[None]


class OffLoop:
    """Runs blocking functions in a few threads, first in, first out. All methods run on the event loop."""

    def __init__(self, clock: Clock, threads: int, capacity: int, wait_ms: int) -> None:
        """Create the threads; at most `capacity` functions wait for a thread, each for at most `wait_ms`."""
        self._clock = clock
        self._threads = threads
        self._capacity = capacity
        self._wait_ms = wait_ms
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="off-loop")
        self._waiting: deque[_Waiting] = deque()
        self._running = 0
        self._is_stopped = False
        self.longest_ns = 0
        """The longest time from a call of `run` to its result."""

    def __len__(self) -> int:
        return len(self._waiting) + self._running

    @property
    def longest_wait_ms(self) -> int:
        """How long the first function in the queue has waited; 0 if the queue is empty."""
        return self._age_ms(self._clock.monotonic_ns())

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread and return its result.

        Raises:
            Refused: the queue is full, the work has waited too long, or the broker is stopping.
            Exception: any exception of `work`.
        """
        since_ns = self._clock.monotonic_ns()
        if self._is_stopped:
            raise shutting_down()
        if self._running < self._threads:
            self._running += 1
        else:
            await self._wait_for_turn(since_ns)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work)
        finally:
            self.longest_ns = max(self.longest_ns, self._clock.monotonic_ns() - since_ns)
            self._assign_thread()

    def sweep(self) -> None:
        """Refuse the work that has waited too long; to be called a few times per second."""
        now_ns = self._clock.monotonic_ns()
        while self._waiting and (age_ms := self._age_ms(now_ns)) >= self._wait_ms:
            size = len(self._waiting)
            self._refuse_first(
                Refused(
                    ResponseCode.SYSTEM_BUSY,
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                    f"period in queue: {age_ms}ms, size of queue: {size}: the disk loads pages too "
                    f"slowly (wait_in_pull_queue_ms {self._wait_ms}, cold_read_threads {self._threads})",
                )
            )

    async def stop(self) -> None:
        """Refuse all waiting and further work, and wait for the work that is running."""
        self._is_stopped = True
        while self._waiting:
            self._refuse_first(shutting_down())
        await asyncio.to_thread(self._executor.shutdown)

    async def _wait_for_turn(self, since_ns: int) -> None:
        if len(self._waiting) >= self._capacity:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy, start flow control for a while: "
                f"{len(self._waiting):,} reads wait for the disk (pull_queue_capacity {self._capacity:,}), "
                f"the first of them for {self._age_ms(since_ns)} ms",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(since_ns, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # a thread was already assigned to this work
                self._assign_thread()
            raise

    def _assign_thread(self) -> None:
        """Assign a free thread to the first work in the queue."""
        while self._waiting:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_result(None)
                return
        self._running -= 1

    def _refuse_first(self, refusal: Refused) -> None:
        turn = self._waiting.popleft().turn
        if not turn.done():  # else the waiting task was cancelled
            turn.set_exception(refusal)

    def _age_ms(self, now_ns: int) -> int:
        return (now_ns - self._waiting[0].since_ns) // NS_PER_MS if self._waiting else 0
