"""The push consumer with an async API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cluster.client.config import Nameservers, PushConfig
from cluster.client.consumer.listener import Listener
from cluster.client.consumer.push_core import PushCore
from cluster.client.errors import ConfigInvalid
from cluster.client.group.group_config import group_config
from cluster.client.message_selector import MessageSelector
from cluster.client.transport.faces import AsyncFace
from store.common.clock import Clock
from store.message.message_queue import MessageQueue


class PushConsumer(AsyncFace[PushCore]):
    """Consumer that calls a listener with the messages of the queues that the group assigns to it.

        async def bill(messages: list[MessageExt]) -> None:
            for message in messages:
                ...

        async with PushConsumer("127.0.0.1:9876", "billing", bill) as consumer:
            await consumer.subscribe("orders", "fruit || wine")
            await consumer.join()

    The listener is a coroutine function, which runs on the event loop, or a plain function, which runs in
    threads. At most `consume_threads` calls run concurrently, each with at most `consume_batch` messages.

    The messages are consumed if the listener returns None, True or CONSUME_SUCCESS. If it returns False or
    RECONSUME_LATER, or raises an exception, they are retried as the setting `retry` says, and after
    `max_reconsume_times` retries they are sent to the dead-letter queue of the group. Exceptions are logged
    to the logger `raymq` (Python's logging), which writes to standard error if logging is not configured.

    With `ordered=True`, the listener gets the messages of each queue in order, one call after another, and
    the queue waits while a message is retried. Messages with the same sharding key are in the same queue.
    With `PushConfig(message_model="broadcasting")`, each member of the group gets all messages.

    The listener may call `close`; the consumer then closes after the listener has returned. Offsets are
    committed every `commit_interval_ms`, when a queue is released, and at `close`.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        listener: Listener | None = None,
        *,
        config: PushConfig | None = None,
        ordered: bool | None = None,
        clock: Clock | None = None,
    ) -> None:
        if listener is None:
            raise ConfigInvalid(
                "a push consumer needs a listener: give a function that takes a list of messages"
            )
        if not callable(listener):
            raise ConfigInvalid(
                f"the listener is {listener!r}: give a function that takes a list of messages"
            )
        config = group_config("a push consumer", config, PushConfig(), nameservers, group)
        if ordered is not None:
            config = replace(config, ordered=ordered)
        super().__init__("consumer", lambda: PushCore(config, listener, clock))

    async def close(self) -> None:
        """Stop fetching, wait for running listener calls, commit, and leave the group.

        The wait is limited to `close_timeout_ms`.
        """
        if (core := self._closing()) is not None:
            await core.close()

    async def subscribe(self, topics: str | Iterable[str], expression: str | MessageSelector = "*") -> None:
        """Subscribe to `topics`: the members of the group share their queues.

        `expression` selects messages by tag, `*` for all or `tag || tag`, or is a MessageSelector.
        Raises ConfigInvalid.
        """
        self._opened().subscribe(topics, expression)

    async def pause(self, *queues: MessageQueue) -> None:
        """Do not call the listener for `queues` (by default: for any queue) until `resume`.

        The queues stay assigned, and running calls finish. Without arguments, the pause also applies to
        queues that are assigned later. Raises QueueNotAssigned.
        """
        self._opened().pause(queues)

    async def resume(self, *queues: MessageQueue) -> None:
        """End the pause of `queues`, or by default of all queues. Raises QueueNotAssigned."""
        self._opened().resume(queues)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are assigned now, sorted, without those of the retry topic."""
        return self._core.held.assignment() if self._core is not None else []

    async def join(self) -> None:
        """Wait until another thread or task closes the consumer.

        Raises SubscriptionDiffers if the group refuses this member.
        """
        core = self._core if self._is_closed else self._opened()
        if core is not None:
            await core.join()
