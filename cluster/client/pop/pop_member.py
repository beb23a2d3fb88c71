"""PopMember: the membership of a worker in its group, and the brokers of its topics; base of the cores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from actors.transport.table import RequestTable
from actors.wire.bodies.groups import CONSUME_POP, ConsumerData, HeartbeatData, SubscriptionData
from actors.wire.bodies.pops import ChangeInvisibleTimeHeader, ChangeInvisibleTimeResponse
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import Buffer, RemotingCommand
from actors.wire.headers import UnregisterClientHeader
from cluster.client.config import MAX_MS, PopFrom
from cluster.client.errors import BrokerUnreachable, ConfigInvalid, DataDamaged, refused
from cluster.client.group.group_session import CONSUME_FROM
from cluster.client.message_selector import MessageSelector
from cluster.client.namespaces import Namespace
from cluster.client.pop.pop_config import LiteConfig, PopConfig
from cluster.client.transport.instance import ClientInstance
from store.common.clock import Clock
from store.message.message import MessageExt
from store.message.pop_records import Receipt
from store.message.properties import MessageConst
from store.store_errors import MessageInvalid, RecordDamaged

LONG_POLL_MS: Final = 15_000
"""A pop or notification waits this long at most in the broker; then the client sends it again."""
PAUSE_MS: Final = 200
"""Between two attempts at a broker that has failed, or holds too many requests."""
_EMPTY: Final = frozenset(
    {ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND}
)


class PopMember:
    """One worker. Create it on the event loop that runs it."""

    def __init__(
        self,
        config: PopConfig | LiteConfig,
        consume_from: PopFrom,
        clock: Clock | None,
        table: RequestTable | None = None,
    ) -> None:
        self.instance = ClientInstance(config, clock=clock, table=table)
        self._group = config.group
        self._names = Namespace(config.namespace)
        self._consume_from = consume_from
        self._turn = 0
        self._subscriptions: dict[str, SubscriptionData] = {}
        self.instance.start_route_refresh()
        self.instance.start_heartbeats(self._heartbeat, lambda: list(self._subscriptions))
        self.instance.before_close(self._leave)

    async def close(self) -> None:
        """Close the connections. Messages that are not acknowledged become visible again in time."""
        await self.instance.close()

    def _heartbeat(self) -> HeartbeatData:
        """Return a heartbeat that makes this worker a member of its group, without queues of its own."""
        subscriptions = list(self._subscriptions.values())
        where = CONSUME_FROM[self._consume_from]
        consumer = ConsumerData(
            self._group, CONSUME_POP, consume_from_where=where, subscriptions=subscriptions
        )
        return HeartbeatData(self.instance.client_id, [consumer])

    async def _subscribe(self, topic: str, selector: MessageSelector) -> None:
        """Report the topic to its brokers at its first use, and when the selector has changed."""
        known = self._subscriptions.get(topic)
        if known is not None and (known.expression_type, known.sub_string) == (
            selector.type,
            selector.expression,
        ):
            return
        self._subscriptions[topic] = SubscriptionData(
            topic,
            selector.expression,
            sub_version=self.instance.clock.wall_ms(),
            expression_type=selector.type,
        )
        await self.instance.send_heartbeats(self._heartbeat(), [topic])

    async def _leave(self) -> None:
        header = UnregisterClientHeader(self.instance.client_id, consumer_group=self._group)
        addresses = {
            address
            for topic in self._subscriptions
            if (route := self.instance.routes.peek(topic)) is not None
            for address in route.masters().values()
        }
        for address in sorted(addresses):
            self.instance.remoting.oneway(
                address, RemotingCommand(RequestCode.UNREGISTER_CLIENT, header.to_ext())
            )

    async def _brokers(self, topic: str) -> list[tuple[str, str]]:
        """Return (name, address) of the readable brokers, beginning with another one each time."""
        route = await self.instance.routes.get(topic)
        masters = route.masters()
        names = sorted(share.broker_name for share in route.shares if share.is_readable)
        found = [(name, masters[name]) for name in names if name in masters]
        if not found:
            await self.instance.routes.refresh_or_keep(topic)
            raise BrokerUnreachable(f"no broker of topic {topic!r} can be read: are they running?")
        self._turn = first = (self._turn + 1) % len(found)
        return [*found[first:], *found[:first]]

    async def _address(self, topic: str, broker_name: str) -> str:
        await self.instance.routes.get(topic)
        return self.instance.master_of(topic, broker_name)

    async def _popped(
        self,
        name: str,
        address: str,
        command: RemotingCommand,
        wait_ms: int,
        decode: Callable[[Mapping[str, str], Buffer, str], list[MessageExt]],
    ) -> list[MessageExt]:
        """Return the messages in the response to a pop, which may wait in the broker. Raises ClientError."""
        timeout_ms = wait_ms + self.instance.config.request_timeout_ms
        response = await self.instance.request(address, command, timeout_ms)
        if response.code in _EMPTY:
            if response.code == ResponseCode.POLLING_FULL:  # the broker holds no more requests
                await asyncio.sleep(min(wait_ms, PAUSE_MS) / 1000)
            return []
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, response.remark, address)
        try:
            return decode(response.ext, response.body, name)
        except (RecordDamaged, MessageInvalid, KeyError, ValueError) as error:
            raise DataDamaged(f"the response of broker {name!r} to a pop is damaged: {error!r}") from error

    async def _change(
        self, topic: str, broker_name: str, header: ChangeInvisibleTimeHeader
    ) -> ChangeInvisibleTimeResponse:
        """Make a message of `topic` visible again after another time. Raises ReceiptExpired, ClientError."""
        command = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())
        response = await self.instance.invoke(await self._address(topic, broker_name), command)
        return ChangeInvisibleTimeResponse.from_ext(response.ext)


def receipt_of(message: MessageExt) -> Receipt:
    """Return the receipt of a received message. Raises ConfigInvalid if it has none."""
    text = message.properties.get(MessageConst.POP_CK) if isinstance(message, MessageExt) else None
    if text is None:
        raise ConfigInvalid(
            f"{message!r:.100} was not received by this kind of consumer: give the received message"
        )
    try:
        return Receipt.decode(text)
    except MessageInvalid as error:
        raise ConfigInvalid(error.remark) from error


def check_ms(name: str, time_ms: object, least: int) -> None:
    """Raise ConfigInvalid unless a time is a number of milliseconds, `least` or more."""
    if isinstance(time_ms, bool) or not isinstance(time_ms, int) or not least <= time_ms <= MAX_MS:
        raise ConfigInvalid(f"{name} is {time_ms!r}: give a number of milliseconds, {least} or more")
