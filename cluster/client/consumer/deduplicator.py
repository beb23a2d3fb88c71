"""Deduplicator: decorator that calls a listener once for each message key.

    messages ─→ claim their keys ─→ drop the marked ones ─→ listener ─ success ─→ mark ─→ release the claims
                  └ wait while another call          └ all are marked:   └ failure: nothing is marked,
                    holds one of the keys              success             the messages are retried

The listener's effect and the mark are two steps. If the process is killed between them, the message is
delivered again and the listener runs again: the effect happens at least once. See docs/idempotence.md.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import zlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

from cluster.client.consumer.listener import Listener, Verdict, outcome_of
from cluster.client.consumer.seen_stores import MemorySeen, SeenStore
from cluster.client.errors import ConfigInvalid
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.properties import MessageConst

_log = get_logger(__name__)

KeyFunction = Callable[[MessageExt], str | None]


def message_key(message: MessageExt) -> str:
    """Return the default key of `message`: the id that its producer assigned, and the CRC of its body.

    The CRC is needed because all messages of a batch have the same UNIQ_KEY if an Apache RocketMQ broker up
    to version 5.3.3 has stored them.
    """
    properties = message.properties
    msg_id = (
        properties.get(MessageConst.UNIQ_KEY)
        or properties.get(MessageConst.ORIGIN_MESSAGE_ID)
        or message.offset_msg_id
    )
    return f"{msg_id}:{zlib.crc32(message.body):08x}"


@dataclass(frozen=True, slots=True)
class _Claim:
    """The keys of one listener call, which no other call handles at the same time."""

    keys: list[str]
    keyed: list[tuple[str | None, MessageExt]]
    ended: Future[None]


class Deduplicator:
    """Decorator for the listener of a push consumer that skips messages with a key consumed before.

        once = Deduplicator(SqliteSeen("billing-seen.db"), key=lambda message: message.keys)

        @once
        def bill(messages: list[MessageExt]) -> None:
            ...

        with PushConsumer("127.0.0.1:9876", "billing", bill) as consumer:
            ...

    The listener may be a plain function or a coroutine function. It gets the messages of a call that are not
    marked; if all of them are marked, it is not called. The keys are marked after the listener has succeeded.
    If it fails, nothing is marked, and all messages of the call are retried. Calls with a common key run one
    after another within one process.

    Args:
        store: Keeps the marks, at most its `max_keys`. Default: `MemorySeen()`. Use one store for each group.
        key: Function that returns the key of a message, or None if the message must not be deduplicated.
            Default: the message id that the producer assigned (UNIQ_KEY) with the CRC of the body, which
            finds messages that were sent or delivered again, but not a second `send` of the same data.

    Attributes:
        skipped: Number of messages skipped so far.
    """

    def __init__(self, store: SeenStore | None = None, key: KeyFunction = message_key) -> None:
        if not callable(key):
            raise ConfigInvalid(f"key is {key!r}: give a function that returns the key of a message")
        self.skipped = 0
        self._store = MemorySeen() if store is None else store
        self._key = key
        self._lock = threading.Lock()
        self._claimed: dict[str, Future[None]] = {}

    def __call__(self, listener: Listener) -> Listener:
        """Return a listener that calls `listener` with the messages that are not marked."""
        if not callable(listener):
            raise ConfigInvalid(
                f"the listener is {listener!r}: give a function that takes a list of messages"
            )
        if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
            getattr(listener, "__call__", None)  # noqa: B004 -- an object with an async __call__
        ):
            coroutine = cast("Callable[[list[MessageExt]], Awaitable[Verdict]]", listener)

            async def once_async(messages: list[MessageExt]) -> Verdict:
                return await self._call_async(coroutine, messages)

            return functools.update_wrapper(once_async, listener)

        def once(messages: list[MessageExt]) -> Verdict:
            return self._call(listener, messages)

        return functools.update_wrapper(once, listener)

    def close(self) -> None:
        """Close the store. Call this after the consumer is closed."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- calls of the listener

    def _call(self, listener: Listener, messages: Sequence[MessageExt]) -> Verdict:
        keyed = self._keyed(messages)
        while isinstance(claim := self._claim(keyed), Future):
            claim.result()
        try:
            fresh = self._fresh(claim)
            if not fresh:
                return None
            verdict = listener(fresh)
            if inspect.isawaitable(verdict):
                # This runs in a thread of the consumer. The client would run the awaitable on its event loop
                # after this function has returned, so the keys would not be marked.
                raise TypeError("the listener returned an awaitable: declare it with `async def`")
            if outcome_of(verdict) is True:
                self._mark(claim)
            return verdict
        finally:
            self._release(claim)

    async def _call_async(
        self, listener: Callable[[list[MessageExt]], Awaitable[Verdict]], messages: Sequence[MessageExt]
    ) -> Verdict:
        keyed = self._keyed(messages)
        while isinstance(claim := self._claim(keyed), Future):
            # Shielded, because cancelling this task must not cancel the future of the other call.
            await asyncio.shield(asyncio.wrap_future(claim))
        try:
            fresh = await asyncio.to_thread(self._fresh, claim)
            if not fresh:
                return None
            verdict = await listener(fresh)
            if outcome_of(verdict) is True:
                await asyncio.to_thread(self._mark, claim)
            return verdict
        finally:
            self._release(claim)

    # ---- steps of a call

    def _keyed(self, messages: Sequence[MessageExt]) -> list[tuple[str | None, MessageExt]]:
        keyed = [(self._key(message), message) for message in messages]
        for key, message in keyed:
            if key is not None and not isinstance(key, str):
                raise TypeError(f"key returned {key!r} for message {message.msg_id}: return a string or None")
        return keyed

    def _claim(self, keyed: list[tuple[str | None, MessageExt]]) -> _Claim | Future[None]:
        """Claim all keys; if another call holds one of them, claim none and return the future of its end."""
        keys = list(dict.fromkeys(key for key, _ in keyed if key is not None))
        with self._lock:
            for key in keys:
                if (held := self._claimed.get(key)) is not None:
                    return held
            claim = _Claim(keys, keyed, Future())
            for key in keys:
                self._claimed[key] = claim.ended
        return claim

    def _release(self, claim: _Claim) -> None:
        with self._lock:
            for key in claim.keys:
                del self._claimed[key]
        claim.ended.set_result(None)

    def _fresh(self, claim: _Claim) -> list[MessageExt]:
        """Return the messages for the listener: of each key that is not marked, the first message."""
        known = self._store.seen(claim.keys) if claim.keys else set()
        fresh = []
        for key, message in claim.keyed:
            if key is None:
                fresh.append(message)
            elif key not in known:
                known.add(key)
                fresh.append(message)
        skipped = len(claim.keyed) - len(fresh)
        if skipped:
            _log.debug("messages_skipped", messages=skipped)
            with self._lock:
                self.skipped += skipped
        return fresh

    def _mark(self, claim: _Claim) -> None:
        """Mark the keys of `claim`.

        An error is logged, not raised: the listener has succeeded, and a retry would repeat its effect now,
        whereas a missing mark repeats it only if the message is delivered again.
        """
        if not claim.keys:
            return
        try:
            self._store.mark(claim.keys)
        except Exception:  # noqa: BLE001 - logged
            _log.exception("mark_failed", keys=len(claim.keys))
