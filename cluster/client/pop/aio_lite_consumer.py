"""The lite consumer with an async API."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from cluster.client.config import Nameservers
from cluster.client.consumer.arguments import check_poll
from cluster.client.errors import ConfigInvalid
from cluster.client.group.group_config import group_config
from cluster.client.pop.lite_core import LiteCore, Option
from cluster.client.pop.pop_config import LiteConfig
from cluster.client.pop.pop_member import check_ms
from cluster.client.transport.faces import AsyncFace
from store.common.clock import Clock
from store.message.lite_topics import NAMES, is_valid_name
from store.message.message import MessageExt
from store.message.pop_records import MESSAGES_MAX
from store.message.validate import check_topic
from store.store_errors import MessageInvalid


class LiteConsumer(AsyncFace[LiteCore]):
    """Receives the messages of the lite topics that it subscribes, each lite topic in order.

        async with LiteConsumer("127.0.0.1:9876", group="agents", topic="chats") as consumer:
            await consumer.subscribe("session-7")
            while True:
                for message in await consumer.receive(max_messages=8):
                    await reply_to(message.lite_topic, message.body)
                    await consumer.ack(message)

    The topic is of type LITE, and the group is bound to it (attribute lite.bind.topic). The messages of a
    lite topic that one call returns are a batch: until all of them are acknowledged, or one is visible again,
    no consumer of the group gets others of that lite topic. A message that is not acknowledged within
    `invisible_ms` is delivered again, with those after it, with `reconsume_times` + 1.
    Calls may run at the same time.
    """

    def __init__(
        self,
        nameservers: Nameservers | None = None,
        group: str | None = None,
        topic: str | None = None,
        *,
        on_lost: Callable[[str], object] | None = None,
        config: LiteConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create the consumer.

        `on_lost` is called with a lite topic that another consumer of an exclusive group has taken over. It
        is called on the event loop, so it must not block.
        """
        config = group_config("a lite consumer", config, LiteConfig(), nameservers, group)
        if topic is not None:
            config = replace(config, topic=topic)
        try:
            check_topic(config.topic)
        except MessageInvalid as error:
            raise ConfigInvalid(f"topic: {error}") from error
        super().__init__("lite consumer", lambda: LiteCore(config, on_lost, clock))

    async def close(self) -> None:
        """Unsubscribe all lite topics and close the connections.

        Messages that `receive` has returned are delivered again in time, unless they are acknowledged.
        """
        if (core := self._closing()) is not None:
            await core.close()

    async def subscribe(self, *lite_topics: str, start: str | int | datetime | None = None) -> None:
        """Receive messages of these lite topics, too.

        In a group with the attribute lite.sub.model=Exclusive, other consumers lose them. The subscriptions
        are sent again to a broker that has restarted, and to a new leader.

        Args:
            lite_topics: Names of lite topics, which need not have messages yet.
            start: Where the group begins to read them: `earliest`, `latest`, an offset, or the first message
                stored at or after a datetime with a time zone. None: where it was; a new group begins with
                the first message.

        Raises ConfigInvalid, LiteQuotaExceeded, and the errors of the brokers. After an error nothing has
        changed.
        """
        await self._opened().subscribe(_names(lite_topics), _option(start))

    async def unsubscribe(self, *lite_topics: str) -> None:
        """Receive no more messages of these lite topics. Raises ConfigInvalid."""
        await self._opened().unsubscribe(_names(lite_topics))

    async def subscription(self) -> set[str]:
        """Return the names of the subscribed lite topics."""
        return set(self._opened().subscribed)

    async def receive(self, *, max_messages: int = 1, timeout_ms: int = 20_000) -> list[MessageExt]:
        """Return messages of the subscribed lite topics, or an empty list if none arrive in time.

        The offset of a message, `queue_offset`, is that in its lite topic. Brokers that cannot be reached are
        asked again until `timeout_ms`.

        Raises ConfigInvalid, TopicNotFound, NameserverUnreachable, and the error of the last broker if all
        brokers fail, or refuse the group.

        Args:
            max_messages: Maximum number of messages, 1 to 32.
            timeout_ms: Time to wait for a message.
        """
        check_poll("max_messages", max_messages, timeout_ms)
        if max_messages > MESSAGES_MAX:
            raise ConfigInvalid(f"max_messages is {max_messages}: give 1 to {MESSAGES_MAX}")
        return await self._opened().receive(max_messages, timeout_ms)

    async def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Acknowledge a message, or several: they are not delivered again.

        An acknowledgement after the invisible time has no effect. Raises ConfigInvalid, BrokerUnreachable,
        DeadlineExceeded.
        """
        core = self._opened()
        await core.ack([messages] if isinstance(messages, MessageExt) else list(messages))

    async def nack(self, message: MessageExt, delay_ms: int = 0) -> None:
        """Give a message back: it is delivered again after `delay_ms`, with those after it.

        Raises as `extend`.
        """
        check_ms("delay_ms", delay_ms, 0)
        await self._opened().change(message, max(delay_ms, 1))

    async def extend(self, message: MessageExt, invisible_ms: int) -> None:
        """Keep a message invisible for `invisible_ms` from now on.

        Raises:
            ReceiptExpired: The message was acknowledged already, or is visible to others again.
            ConfigInvalid: The time is invalid, or the message is not a received one.
            BrokerUnreachable: There is no connection to its broker.
            DeadlineExceeded: Its broker did not respond in time.
        """
        check_ms("invisible_ms", invisible_ms, 1)
        await self._opened().change(message, invisible_ms)

    async def suspend(self, message: MessageExt, delay_ms: int) -> None:
        """Stop the lite topic of a message for `delay_ms`, for example until a model is free again.

        Then all of its messages that are in flight are delivered again; that delivery is not counted in
        `reconsume_times`. Raises as `extend`.
        """
        check_ms("delay_ms", delay_ms, 1)
        await self._opened().change(message, delay_ms, suspends=True)


def _names(given: Iterable[str]) -> frozenset[str]:
    names = frozenset(given)
    if not names:
        raise ConfigInvalid("no lite topic given: give one or more names")
    for each in names:
        if not isinstance(each, str) or not is_valid_name(each):
            raise ConfigInvalid(f"the lite topic {each!r:.100} has an invalid name: {NAMES}")
    return names


def _option(start: object) -> Option:
    if start is None:
        return None
    if start in ("earliest", "latest"):
        return "POLICY", 1 if start == "earliest" else 2
    if type(start) is int and 0 <= start < 1 << 63:
        return "OFFSET", start
    if isinstance(start, datetime) and start.tzinfo is not None and start.timestamp() >= 0:
        return "TIMESTAMP", round(start.timestamp() * 1000)
    raise ConfigInvalid(
        f"start is {start!r:.100}: give 'earliest', 'latest', an offset, or a datetime with a time zone"
    )
