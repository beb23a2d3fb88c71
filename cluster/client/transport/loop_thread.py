"""LoopThread: runs the asyncio core of the blocking faces, and what other threads post to it.

One loop (uvloop) per process, shared by all blocking clients. A forked child has none of its parent's
threads: a client of the parent raises ClientClosed there, and one made in the child gets a loop of its own.
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
        """True after a fork: no thread runs this loop in the child."""
        self._posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_rung = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _threads.add(self)

    @classmethod
    def shared(cls) -> LoopThread:
        """Return the process's own loop thread, which the first call starts."""
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
                # Raised by a callback: it would silently end every client of the process.
                log.exception("callback_exit_ignored")
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
        """Mark all loop threads in a forked child."""
        cls._shared = None
        cls._shared_lock = threading.Lock()  # another thread may have held it
        for thread in list(_threads):
            thread.forked()

    def forked(self) -> None:
        """Mark this loop as one without a thread."""
        self.is_of_parent = True
        self._is_rung = False

    def post(self, call: Callable[..., object], *args: object) -> None:
        """Run `call(*args)` on the loop, after all that this thread posted before. For any thread."""
        self._posted.append((call, args))
        if not self._is_rung:  # one wake-up for a burst
            self._ring()

    def _ring(self) -> None:
        self.check()
        self._is_rung = True
        self.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # First the flag, then the work: a thread that saw the flag set has appended its call already.
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
