"""The pop consumer with an async API."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.client.config import Nameservers
from cluster.client.consumer.arguments import check_poll, selector_of, topics_of
from cluster.client.errors import ConfigInvalid
from cluster.client.group.group_config import group_config
from cluster.client.message_selector import MessageSelector
from cluster.client.pop.pop_config import PopConfig
from cluster.client.pop.pop_core import PopCore
from cluster.client.pop.pop_member import check_ms
from cluster.client.transport.faces import AsyncFace
from store.common.clock import Clock
from store.message.message import MessageExt
from store.message.pop_records import MESSAGES_MAX


class PopConsumer(AsyncFace[PopCore]):
    """Worker that receives single messages of a topic, and acknowledges each one (a work queue).

        async with PopConsumer("127.0.0.1:9876", group="thumbnails") as worker:
            while True:
                for job in await worker.receive("images", max_messages=8):
                    try:
                        await work_on(job)
                        await worker.ack(job)
                    except TooBusy:
                        await worker.nack(job, delay_ms=30_000)

    A received message is invisible to all other workers for `invisible_ms`. If it is not acknowledged by
    then, it is delivered again, with `reconsume_times` + 1. Any number of workers may share a topic, more
    than it has queues, without rebalancing. Messages are ordered with `ordered` only.
    Calls may run at the same time.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        *,
        config: PopConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        config = group_config("a pop consumer", config, PopConfig(), nameservers, group)
        super().__init__("pop consumer", lambda: PopCore(config, clock))

    async def close(self) -> None:
        """Close the connections. Received messages that are not acknowledged are delivered again in time."""
        if (core := self._closing()) is not None:
            await core.close()

    async def receive(
        self,
        topic: str,
        expression: str | MessageSelector = "*",
        *,
        max_messages: int = 1,
        timeout_ms: int = 20_000,
        invisible_ms: int | None = None,
        ordered: bool = False,
    ) -> list[MessageExt]:
        """Return messages of `topic`, or an empty list if none arrive within `timeout_ms`.

        Raises ConfigInvalid, TopicNotFound, NameserverUnreachable, and the error of the last broker if all
        brokers fail.

        Args:
            topic: The topic.
            expression: Selects messages by tag, `*` for all or `tag || tag`, or is a MessageSelector.
            max_messages: Maximum number of messages, 1 to 32.
            timeout_ms: Time to wait for a message.
            invisible_ms: How long the messages are invisible to other workers. None: `invisible_ms` of the
                configuration.
            ordered: Messages of each queue are received in order. While one of the last call is neither
                acknowledged nor visible again, its queue is left out.
        """
        (name,) = topics_of(topic)
        check_poll("max_messages", max_messages, timeout_ms)
        if max_messages > MESSAGES_MAX:
            raise ConfigInvalid(f"max_messages is {max_messages}: give 1 to {MESSAGES_MAX}")
        core = self._opened()
        invisible_ms = core.config.invisible_ms if invisible_ms is None else invisible_ms
        check_ms("invisible_ms", invisible_ms, 1)
        return await core.receive(
            name, selector_of(expression), max_messages, timeout_ms, invisible_ms, is_ordered=ordered
        )

    async def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Acknowledge a message, or several: they are not delivered again.

        An acknowledgement after the invisible time has no effect. Raises ConfigInvalid, BrokerUnreachable,
        DeadlineExceeded.
        """
        core = self._opened()
        await core.ack([messages] if isinstance(messages, MessageExt) else list(messages))

    async def nack(self, message: MessageExt, delay_ms: int = 0) -> None:
        """Give a message back: it is delivered again after `delay_ms`.

        Raises as `extend`.
        """
        check_ms("delay_ms", delay_ms, 0)
        await self._opened().change(message, max(delay_ms, 1))

    async def extend(self, message: MessageExt, invisible_ms: int) -> None:
        """Keep a message invisible for `invisible_ms` from now on.

        Raises:
            ReceiptExpired: The message was acknowledged already, or is visible to other workers again.
            ConfigInvalid: The time is invalid, or the message is not a received one.
            BrokerUnreachable: There is no connection to its broker.
            DeadlineExceeded: Its broker did not respond in time.
        """
        check_ms("invisible_ms", invisible_ms, 1)
        await self._opened().change(message, invisible_ms)
