"""ListenerCall: calls the user's message listener and interprets its return value or exception."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import cast

from cluster.client.results import ConsumeStatus, ReconsumeLater
from store.message.message import MessageExt

Verdict = ConsumeStatus | ReconsumeLater | bool | None
Listener = Callable[[list[MessageExt]], Verdict | Awaitable[Verdict]]
Outcome = bool | ReconsumeLater | Exception
"""Result of a listener call: True if the messages are consumed, or the exception.

False and ReconsumeLater mean that the messages are to be retried.
"""


class ListenerCall:
    """A listener: a plain function that runs in worker threads, or a coroutine function.

    Create it on the event loop that runs the coroutines.
    """

    def __init__(self, listener: Listener) -> None:
        self.is_async = inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
            getattr(listener, "__call__", None)  # noqa: B004 -- an object with an async __call__
        )
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._is_inside: ContextVar[bool] = ContextVar("is_inside_listener", default=False)

    @property
    def is_caller(self) -> bool:
        """Return True if the current thread or task is executing the listener."""
        return self._is_inside.get()

    def call(self, messages: list[MessageExt]) -> Outcome:
        """Call a plain function. If it returns an awaitable, run that on the event loop and wait for it."""
        token = self._is_inside.set(True)
        try:
            verdict = self._listener(messages)
            if verdict is not None and inspect.isawaitable(verdict):
                verdict = asyncio.run_coroutine_threadsafe(_awaited(verdict), self._loop).result()
            return outcome_of(verdict)
        except BaseException as raised:  # noqa: BLE001 -- any exception of a listener is a failure of its messages
            return _failure(raised)
        finally:
            self._is_inside.reset(token)

    async def call_async(self, messages: list[MessageExt]) -> Outcome:
        """Call a coroutine function. Raises CancelledError if the client cancels the running task."""
        token = self._is_inside.set(True)
        try:
            return outcome_of(await cast("Awaitable[Verdict]", self._listener(messages)))
        except BaseException as raised:  # noqa: BLE001 -- as above
            return _failure(raised)
        finally:
            self._is_inside.reset(token)

    async def call_directly(self, message: MessageExt) -> Outcome:
        """Call the listener with one message outside normal consumption. No offset changes."""
        if self.is_async:
            return await self.call_async([message])
        return await asyncio.to_thread(self.call, [message])


def outcome_of(verdict: Verdict) -> Outcome:
    """Return the outcome that the listener's return value means. Raises TypeError for any other value."""
    if verdict in (None, True, ConsumeStatus.CONSUME_SUCCESS):
        return True
    if verdict in (False, ConsumeStatus.RECONSUME_LATER):
        return False
    if isinstance(verdict, ReconsumeLater):
        return verdict
    raise TypeError(
        f"the listener returned {verdict!r}: return None, True or CONSUME_SUCCESS if the messages are "
        "consumed, False, RECONSUME_LATER or reconsume_later(level) to retry them"
    )


async def _awaited(verdict: Awaitable[Verdict]) -> Verdict:
    return await verdict


def _failure(raised: BaseException) -> Exception:
    """Return `raised` as an Exception, wrapped if it is another BaseException such as SystemExit.

    A listener that calls `sys.exit` must not end its worker thread, nor the event loop, which all clients of
    the process share.

    Raises:
        CancelledError: The client itself cancels the current task.
    """
    if isinstance(raised, Exception):
        return raised
    if isinstance(raised, asyncio.CancelledError):
        try:
            task = asyncio.current_task()
        except RuntimeError:  # in a thread
            task = None
        if task is not None and task.cancelling():
            raise raised
    failure = RuntimeError(f"the listener raised {type(raised).__name__}")
    failure.__cause__ = raised
    return failure
