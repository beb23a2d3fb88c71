"""The push consumer, async face."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.client.config import Nameservers, PushConfig
from cluster.client.consumer.listener import Listener
from cluster.client.consumer.pull_core import consumer_config
from cluster.client.consumer.push_core import PushCore
from cluster.client.errors import ConfigInvalid
from cluster.client.transport.faces import AsyncFace
from store.clock import Clock
from store.message.message_queue import MessageQueue


class PushConsumer(AsyncFace[PushCore]):
    """Calls a listener for the messages of the queues that the group gives it.

        async def bill(messages: list[MessageExt]) -> None:
            for message in messages:
                ...

        async with PushConsumer("127.0.0.1:9876", "billing", bill) as consumer:
            await consumer.subscribe("orders", "fruit || wine")
            await consumer.join()

    The listener is a coroutine function, run by the loop, or a plain one, run in threads; at most
    `consume_threads` calls run at once, each with at most `consume_batch` messages. Returning None, True or
    CONSUME_SUCCESS means done; raising, False or RECONSUME_LATER means again after a back-off, and after
    `max_reconsume_times` the group's dead letters. What it raises is logged under `raymq` (Python's logging),
    on standard error where nothing is configured. It may call `close`, which then goes on when it has
    returned. Offsets are committed every `commit_interval_ms`, when a queue is given back, and at `close`.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        listener: Listener | None = None,
        *,
        config: PushConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        if listener is None:
            raise ConfigInvalid("a push consumer needs a listener: a function that takes a list of messages")
        if not callable(listener):
            raise ConfigInvalid(
                f"the listener is {listener!r}: give a function that takes a list of messages"
            )
        if config is not None and not isinstance(config, PushConfig):
            raise ConfigInvalid(f"config is a {type(config).__name__}: a push consumer needs a PushConfig")
        config = consumer_config(nameservers, group, config or PushConfig())
        super().__init__("consumer", lambda: PushCore(config, listener, clock))

    async def close(self) -> None:
        """Stop fetching, wait for running listeners (at most `close_timeout_ms`), commit, leave the group."""
        if (core := self._closing()) is not None:
            await core.close()

    async def subscribe(self, topics: str | Iterable[str], expression: str = "*") -> None:
        """Share the queues of `topics` with the group's other members.

        `expression` is `*` or `tag || tag`.
        """
        self._opened().subscribe(topics, expression)

    async def pause(self, *queues: MessageQueue) -> None:
        """Call the listener for no message of `queues` until `resume`; without `queues`, for none at all.

        Without `queues` the pause also covers queues that are assigned later. The queues stay assigned, and
        running calls finish. Raises QueueNotAssigned.
        """
        self._opened().pause(queues)

    async def resume(self, *queues: MessageQueue) -> None:
        """End the pause of `queues`, or of all."""
        self._opened().resume(queues)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues held now."""
        return self._core.held.assignment() if self._core is not None else []

    async def join(self) -> None:
        """Wait until another thread or task closes the consumer.

        Raises the error that ended it otherwise (SubscriptionDiffers).
        """
        core = self._core if self._is_closed else self._opened()
        if core is not None:
            await core.join()
