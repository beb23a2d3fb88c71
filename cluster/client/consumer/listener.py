"""Calling the user's listener, and what its result or exception means for the messages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import cast

from cluster.client.results import ConsumeStatus
from store.message.message import MessageExt

Verdict = ConsumeStatus | bool | None
Listener = Callable[[list[MessageExt]], Verdict | Awaitable[Verdict]]
Outcome = bool | Exception
"""Whether the messages are done, or what the listener raised."""


class ListenerCall:
    """A listener: a plain function for worker threads, or a coroutine function for tasks of the loop.

    Make it on the loop that runs the coroutines.
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
        """Whether the listener itself is the caller, from its thread or its task."""
        return self._is_inside.get()

    def call(self, messages: list[MessageExt]) -> Outcome:
        """Call a plain function; an awaitable that it returns runs on the loop."""
        token = self._is_inside.set(True)
        try:
            verdict = self._listener(messages)
            if verdict is not None and inspect.isawaitable(verdict):
                verdict = asyncio.run_coroutine_threadsafe(_awaited(verdict), self._loop).result()
            return is_success(verdict)
        except BaseException as raised:  # noqa: BLE001 -- whatever a listener raises is its messages' failure
            return _failure(raised)
        finally:
            self._is_inside.reset(token)

    async def call_async(self, messages: list[MessageExt]) -> Outcome:
        """Call a coroutine function. Raises CancelledError if the client cancels the running task."""
        token = self._is_inside.set(True)
        try:
            return is_success(await cast("Awaitable[Verdict]", self._listener(messages)))
        except BaseException as raised:  # noqa: BLE001 -- as above
            return _failure(raised)
        finally:
            self._is_inside.reset(token)

    async def call_directly(self, message: MessageExt) -> Outcome:
        """Call the listener with one message beside its turns. No offset moves."""
        if self.is_async:
            return await self.call_async([message])
        return await asyncio.to_thread(self.call, [message])


def is_success(verdict: Verdict) -> bool:
    """Return True if the messages are done, False if they are to come again. Raises TypeError."""
    if verdict in (None, True, ConsumeStatus.CONSUME_SUCCESS):
        return True
    if verdict in (False, ConsumeStatus.RECONSUME_LATER):
        return False
    raise TypeError(
        f"the listener returned {verdict!r}: return nothing, True or CONSUME_SUCCESS when the messages are "
        "done, False or RECONSUME_LATER when they are to come again"
    )


async def _awaited(verdict: Awaitable[Verdict]) -> Verdict:
    return await verdict


def _failure(raised: BaseException) -> Exception:
    """Return what a listener raised as a failure of its messages.

    `sys.exit` in a listener must end neither its thread nor the loop, where all clients of the process live.

    Raises:
        CancelledError: the client cancels the task.
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
