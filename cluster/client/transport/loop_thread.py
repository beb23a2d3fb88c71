"""LoopThread: the thread that runs the event loop of the blocking clients.

All blocking clients of a process share one uvloop event loop. A forked child does not have the thread: the
parent's clients raise ClientClosed there, and clients created in the child get a new loop.
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
from store.common.logs import get_logger

_log = get_logger(__name__)

T = TypeVar("T")


class LoopThread:
    """A uvloop event loop in a daemon thread."""

    _shared: LoopThread | None = None
    _shared_lock = threading.Lock()

    def __init__(self, name: str = "raymq-client") -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.is_forked = False
        """True in a forked child, in which no thread runs this loop."""
        self._posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._is_wakeup_pending = False
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _threads.add(self)

    @classmethod
    def shared(cls) -> LoopThread:
        """Return the loop thread of this process. The first call starts it."""
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
                # Raised by a callback. Ending the loop would silently stop all clients of the process.
                _log.exception("callback_exit_ignored")
        self.loop.close()

    def stop(self) -> None:
        """Stop the loop and its thread. Must not be called on the shared one."""
        self._is_stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def check(self) -> None:
        """Raise ClientClosed in a forked child, in which waiting for this loop would never end."""
        if self.is_forked:
            raise ClientClosed(
                "this client was created before its process forked: create a client in the child"
            )

    @classmethod
    def mark_all_forked(cls) -> None:
        """Mark all loop threads as not running. Called in a forked child."""
        cls._shared = None
        cls._shared_lock = threading.Lock()  # another thread may have held it
        for thread in list(_threads):
            thread.mark_forked()

    def mark_forked(self) -> None:
        """Mark this loop thread as not running. Called in a forked child."""
        self.is_forked = True
        self._is_wakeup_pending = False

    def post(self, call: Callable[..., object], *args: object) -> None:
        """Run `call(*args)` on the loop, in the order of the calls of one thread. Thread-safe."""
        self._posted.append((call, args))
        if not self._is_wakeup_pending:  # one wake-up for a burst
            self._wake_up()

    def _wake_up(self) -> None:
        self.check()
        self._is_wakeup_pending = True
        self.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # Clear the flag first: a thread that saw it set has already appended its call.
        self._is_wakeup_pending = False
        posted = self._posted
        try:
            while posted:
                call, args = posted.popleft()
                call(*args)
        finally:
            if posted:  # a call raised: the loop logs it, and the remaining calls must still run
                self._wake_up()

    def call(self, function: Callable[[], T]) -> T:
        """Run `function()` on the loop and wait for its result."""

        async def called() -> T:
            return function()

        return self.run(called())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and wait for its result. An exception in the waiting thread cancels it.

        Raises ClientError if called on the thread of the loop, where it would deadlock, and ClientClosed in a
        forked child.
        """
        if self.is_forked:
            work.close()
            self.check()
        if threading.current_thread() is self._thread:
            work.close()
            raise ClientError(
                "a blocking call in a callback on the client's event loop would deadlock: "
                "use cluster.client.aio"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_threads: weakref.WeakSet[LoopThread] = weakref.WeakSet()


os.register_at_fork(after_in_child=LoopThread.mark_all_forked)
