"""Removal of a topic's consume queues without blocking the broker's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from actors.broker.core.loop.reads import Reads
from actors.broker.core.metadata.topics import Topics
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.commitlog.positions import Callback
from store.disk.files import explain
from store.message_store import MessageStore
from store.store_errors import StoreError

REMOVE_TIMEOUT_MS = 60_000
"""Limit of each wait for the store: for a flush, then for the removal."""


class QueueRemoval:
    """Removes the consume queues of deleted topics."""

    def __init__(
        self,
        store: MessageStore,
        reads: Reads,
        topics: Topics,
        request_tick: Callable[[], None],
        forget: Callable[[str, Callback], object],
    ) -> None:
        """Create the removal.

        `request_tick` requests another turn of the broker's event loop; the store does its work at the end of
        each turn. `forget` removes the queues of a topic, as `MessageStore.forget_topic`.
        """
        self._store = store
        self._reads = reads
        self._topics = topics
        self._request_tick = request_tick
        self._forget = forget

    def remove(self, topic: str) -> Coroutine[Any, Any, None]:
        """Return a coroutine that removes the queues of a topic; the caller must await it.

        It returns when the removal is durable. It raises Refused if the removal fails or takes longer than
        REMOVE_TIMEOUT_MS. The topic cannot be created until the coroutine has finished.
        """
        self._topics.begin_removal(topic)
        return self._remove(topic)

    async def _remove(self, topic: str) -> None:
        store = self._store
        written = store.positions.written
        try:
            # Records that are not dispatched yet would create the queues again.
            await self._wait(topic, lambda done: store.on_confirmed(written, done))
            await self._reads.caught_up()
            await self._wait(topic, lambda done: self._forget(topic, done))
        except OSError as error:
            raise _not_removed(topic, explain(error)) from error
        finally:
            self._topics.end_removal(topic)

    async def _wait(self, topic: str, start: Callable[[Callback], object]) -> None:
        """Start an operation of the store and wait for its end.

        Raises Refused if it fails or takes too long, and any error of `start`.
        """
        result: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        start(lambda error: None if result.done() else result.set_result(error))
        self._request_tick()
        try:
            error = await asyncio.wait_for(result, REMOVE_TIMEOUT_MS / 1000)
        except TimeoutError as late:
            reason = f"the disk did not finish within {REMOVE_TIMEOUT_MS} ms"
            raise _not_removed(topic, reason) from late
        if error is not None:
            raise _not_removed(topic, error)


def _not_removed(topic: str, reason: object) -> Refused:
    return Refused(
        ResponseCode.SYSTEM_ERROR,
        f"the queues of topic {topic!r} could not be removed: {reason}; delete the topic again to retry",
    )
