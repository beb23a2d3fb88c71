"""The thread in which the blocking face's asyncio core runs, and how other threads hand work to it.

One loop (uvloop) a process, shared by all blocking clients. A forked child has none of its parent's threads:
what hangs on a loop of the parent says so there, and what is made in the child gets a loop of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

from cluster.client.errors import ClientClosed, ClientError
from store.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")


class LoopThread:
    """A uvloop in a daemon thread."""

    _shared: LoopThread | None = None
    _shared_lock = threading.Lock()

    def __init__(self, name: str = "raymq-client") -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.is_of_parent = False
        """Whether the process has forked since: nobody runs this loop here."""
        self._posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_rung = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _threads.add(self)

    @classmethod
    def shared(cls) -> LoopThread:
        """The process's own loop thread, started at first use."""
        with cls._shared_lock:
            if cls._shared is None:
                cls._shared = LoopThread()
            return cls._shared

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_stopping:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # Of somebody's callback: it would take with it every client of the process, without a word.
                log.exception("callback_would_end_the_loop")
        self.loop.close()

    def stop(self) -> None:
        """End the loop and its thread. Not for the shared one."""
        self._is_stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def check(self) -> None:
        """Raise ClientClosed in a forked child, where a wait for this loop would have no end."""
        if self.is_of_parent:
            raise ClientClosed("this client was made before its process forked: make one in the child")

    @classmethod
    def all_forked(cls) -> None:
        """This is a child now."""
        cls._shared = None
        cls._shared_lock = threading.Lock()  # another thread may have held it
        for thread in list(_threads):
            thread.forked()

    def forked(self) -> None:
        """The thread stayed with the parent."""
        self.is_of_parent = True
        self._is_rung = False

    def post(self, call: Callable[..., object], *args: object) -> None:
        """Have `call(*args)` run on the loop, after whatever this thread posted before. From any thread."""
        self._posted.append((call, args))
        if not self._is_rung:  # one wake-up for a burst
            self._ring()

    def _ring(self) -> None:
        self.check()
        self._is_rung = True
        self.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # First the flag, then the work: whoever saw it set had appended before, and is found below.
        self._is_rung = False
        posted = self._posted
        try:
            while posted:
                call, args = posted.popleft()
                call(*args)
        finally:
            if posted:  # a call raised: the loop reports it, the others must still run
                self._ring()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function()` on the loop and wait for its result."""

        async def called() -> T:
            return function()

        return self.run(called())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and wait for its result; an interrupt of the waiting thread cancels it.

        Raises ClientError when called on the loop's own thread, where it would wait for itself, ClientClosed
        in a forked child.
        """
        if self.is_of_parent:
            work.close()
            self.check()
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError(
                "a blocking call inside a callback of the client's own loop would wait for ever"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


os.register_at_fork(after_in_child=LoopThread.all_forked)
