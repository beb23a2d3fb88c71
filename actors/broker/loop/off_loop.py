"""OffLoop: threads for what waits for the disk, and the bounded queue before them.

What waits too long there is refused as RocketMQ's broker refuses it: with SYSTEM_BUSY, and a remark that says
how long it waited, behind how many others, and which setting says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from actors.remoting.codes import ResponseCode
from actors.remoting.remoting_errors import Refused
from store.clock import NS_PER_MS, Clock

Work = Callable[[], object]
Done = Callable[[Exception | None], None]


class _Waiting(NamedTuple):
    since_ns: int
    work: Work
    done: Done


class OffLoop:
    """Runs work in a few threads, in the order in which it came; all else happens on the loop."""

    def __init__(self, clock: Clock, threads: int, capacity: int, wait_ms: int) -> None:
        """`capacity`: how much may wait for a thread; `wait_ms`: how long."""
        self._clock = clock
        self._threads = threads
        self._capacity = capacity
        self._wait_ms = wait_ms
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="off-loop")
        self._waiting: deque[_Waiting] = deque()
        self._running = 0
        self._is_stopped = False
        self.longest_ns = 0
        """Of all work: its wait and its run."""

    def __len__(self) -> int:
        return len(self._waiting) + self._running

    @property
    def longest_wait_ms(self) -> int:
        """For how long the first in the queue has waited."""
        return self._age_ms(self._clock.monotonic_ns())

    def submit(self, work: Work, done: Done) -> None:
        """Run `work` in a thread, then `done` on the loop, with the error where there was one.

        Raises `Refused` (SYSTEM_BUSY) when too much waits already; `done` gets it after too long a wait.
        """
        now_ns = self._clock.monotonic_ns()
        if len(self._waiting) >= self._capacity:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy, start flow control for a while: "
                f"{len(self._waiting):,} reads wait for the disk (pull_queue_capacity {self._capacity:,}), "
                f"the first of them for {self._age_ms(now_ns)} ms",
            )
        self._waiting.append(_Waiting(now_ns, work, done))
        self._start_next()

    async def run(self, work: Work) -> None:
        """Run `work` in a thread and wait for its end. Raises what it raises, and as `submit`."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: Exception | None) -> None:
            if ended.done():
                return
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        self.submit(work, done)
        await ended

    def sweep(self) -> None:
        """Refuse what has waited too long; call a few times a second."""
        now_ns = self._clock.monotonic_ns()
        while self._waiting and (age_ms := self._age_ms(now_ns)) >= self._wait_ms:
            size = len(self._waiting)
            self._waiting.popleft().done(
                Refused(
                    ResponseCode.SYSTEM_BUSY,
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                    f"period in queue: {age_ms}ms, size of queue: {size}: the disk brings what is asked for "
                    f"too slowly (wait_in_pull_queue_ms {self._wait_ms}, cold_read_threads {self._threads})",
                )
            )

    async def stop(self) -> None:
        """Refuse what waits, and wait for what runs."""
        self._is_stopped = True
        while self._waiting:
            self._waiting.popleft().done(
                Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is shutting down")
            )
        await asyncio.to_thread(self._executor.shutdown)

    def _age_ms(self, now_ns: int) -> int:
        return (now_ns - self._waiting[0].since_ns) // NS_PER_MS if self._waiting else 0

    def _start_next(self) -> None:
        if self._running >= self._threads or not self._waiting or self._is_stopped:
            return
        since_ns, work, done = self._waiting.popleft()
        self._running += 1
        loop = asyncio.get_running_loop()
        future = self._executor.submit(work)
        future.add_done_callback(lambda ended: _post(loop, self._ended, ended, done, since_ns))

    def _ended(self, ended: Future[object], done: Done, since_ns: int) -> None:
        self._running -= 1
        self.longest_ns = max(self.longest_ns, self._clock.monotonic_ns() - since_ns)
        self._start_next()
        error = ended.exception()
        done(error if isinstance(error, Exception) else None)


def _post(
    loop: asyncio.AbstractEventLoop,
    callback: Callable[[Future[object], Done, int], None],
    ended: Future[object],
    done: Done,
    since_ns: int,
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(callback, ended, done, since_ns)
