"""ProducerCore: the implementation that the blocking and the asyncio producer share.

`open_producer` builds it on the running event loop, from these parts:

    ClientInstance   connections, routes, heartbeats
    OutboundFactory  validates a message and encodes its request
    SendHooks        calls the hooks before and after each send
    Sender           sends single messages and batches
    TableSender      sends tables, through Lanes
    Requests         receives the replies to request messages
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from actors.transport.table import RequestTable
from actors.wire.bodies.groups import HeartbeatData
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RecallMessageHeader
from cluster.client.config import MAX_MS, Nameservers, ProducerConfig
from cluster.client.errors import ClientError, ConfigInvalid, DeadlineExceeded
from cluster.client.hooks import SendContext
from cluster.client.namespaces import Namespace
from cluster.client.producer.arguments import KeyedChoice, chooser
from cluster.client.producer.faults import MQFaultStrategy
from cluster.client.producer.lanes import Lanes
from cluster.client.producer.outbound import Outbound, OutboundFactory, with_owned_body
from cluster.client.producer.requests import Requests, create_reply_message, starting_at
from cluster.client.producer.send_hooks import SendHooks
from cluster.client.producer.sender import Choose, MessageSender, Send
from cluster.client.producer.sticky_keys import POLL_MS, CommittedProgress, StickyKeys, StickyKeysHook
from cluster.client.producer.table_send import TableSender
from cluster.client.results import SendResult
from cluster.client.selectors import RoundRobin
from cluster.client.trace.trace_dispatcher import TraceDispatcher
from cluster.client.trace.trace_hooks import TraceSendHook
from cluster.client.transport.instance import ClientInstance
from store.common.clock import Clock, SystemClock
from store.message.message import Message, MessageExt
from store.message.message_queue import MessageQueue
from store.message.properties import MessageConst
from store.message.recall_handle import RecallHandle
from store.message.validate import check_group
from store.store_errors import MessageInvalid


def producer_config(
    nameservers: Nameservers | None, group: str | None, config: ProducerConfig | None
) -> ProducerConfig:
    """Return `config`, or the default, with `nameservers` and `group` replaced if they are given.

    Raises ConfigInvalid if a setting is invalid.
    """
    config = ProducerConfig() if config is None else config
    if not isinstance(config, ProducerConfig):
        raise ConfigInvalid(f"config is a {type(config).__name__}: a producer needs a ProducerConfig")
    if nameservers is not None:
        config = replace(config, nameservers=nameservers)
    if group is not None:
        config = replace(config, group=group)
    config = replace(config, group=Namespace(config.namespace).wrap(config.group))
    try:
        check_group(config.group)
    except MessageInvalid as error:
        raise ConfigInvalid(f"producer group: {error}") from error
    config.addresses()
    return config


def open_producer(
    config: ProducerConfig, clock: Clock | None, table: RequestTable | None = None
) -> ProducerCore:
    """Build a producer on the running event loop and start its background tasks. It does not connect yet.

    `table` has the handlers of requests that brokers send to the producer.
    """
    table = RequestTable() if table is None else table
    names = Namespace(config.namespace)
    requests = Requests(names)
    requests.add_to(table)
    clock = clock or SystemClock()
    queues = config.default_topic_queue_nums
    instance = ClientInstance(config, clock=clock, auto_create_queues=queues, table=table)
    factory = OutboundFactory(config, clock)
    if config.trace:
        dispatcher = TraceDispatcher(instance, config, config.trace_topic)
        config = replace(config, send_hooks=(*config.send_hooks, TraceSendHook(dispatcher, clock)))
    sticky: StickyKeys | None = None
    if groups := [names.wrap(group) for group in config.sticky_key_groups]:
        sticky = StickyKeys(groups, CommittedProgress(instance, groups))
        config = replace(config, send_hooks=(*config.send_hooks, StickyKeysHook()))
        instance.supervisor.every("sticky-keys", lambda: POLL_MS, sticky.poll)
    hooks = SendHooks(config)
    # Random start, as in RocketMQ: many short-lived producers must not all use the first queue.
    turns = RoundRobin(random.randrange(1 << 16))
    strategy = MQFaultStrategy(turns, clock, is_enabled=config.send_latency_fault_enable)
    sender = MessageSender(instance, strategy, hooks, config.retry_times_when_send_failed, names)
    tables = TableSender(instance, config, factory, hooks, sender, Lanes(instance, config), names)
    instance.start_route_refresh()
    instance.start_moved_masters()
    instance.start_heartbeats(
        lambda: HeartbeatData(instance.client_id, producer_groups=[config.group]), instance.routes.topics
    )
    return ProducerCore(config, instance, factory, hooks, sender, tables, requests, names, sticky)


@dataclass(frozen=True, slots=True)
class ProducerCore:
    """An open producer. `prepare` and `prepare_batch` may be called in any thread."""

    config: ProducerConfig
    instance: ClientInstance
    factory: OutboundFactory
    hooks: SendHooks
    sender: MessageSender
    tables: TableSender
    requests: Requests
    names: Namespace = Namespace.NONE
    sticky: StickyKeys | None = None
    registered: set[str] = field(default_factory=set)
    """Topics with whose brokers this producer is registered, so that they can send requests to it."""

    async def close(self) -> None:
        """Wait for the sends in flight, each of which has a deadline, then close the connections."""
        try:
            await self.sender.flush()
        finally:  # also if the wait is cancelled: the sends in flight then fail
            await self.instance.close()

    def prepare(
        self, message: Message, choose: Choose | None, timeout_ms: int | None, *, is_oneway: bool = False
    ) -> Send:
        """Call the `before_send` hooks, encode `message` and return the send.

        Raises MessageRejected if the message is invalid, ConfigInvalid if `timeout_ms` is, or if both the
        caller and a priority choose the queue.
        """
        timeout_ms = self._timeout_ms(choose, timeout_ms)
        if choose is not None and MessageConst.PRIORITY in message.properties:
            raise ConfigInvalid(
                "a priority is the queue: give no sharding_key, queue, selector or lite_topic with it"
            )
        context = self.hooks.before([message], is_oneway=is_oneway)
        try:
            outbound = self.factory.message(message if context is None else context.messages[0])
            return self._send(outbound, choose, timeout_ms, context)
        except ClientError as error:
            self.hooks.after(context, None, error)
            raise

    def prepare_batch(
        self,
        messages: Sequence[Message],
        sharding_key: str | None,
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> Send:
        """Return the send of `messages` as one batch. Raises as `prepare`, and if the batch is empty."""
        context = self.hooks.before(messages) if messages else None
        try:
            outbound = self.factory.batch(messages if context is None else context.messages)
            choose = chooser(messages[0], sharding_key, queue, None, None)
            timeout_ms = self._timeout_ms(choose, timeout_ms)
            return self._send(outbound, choose, timeout_ms, context, len(messages))
        except ClientError as error:
            self.hooks.after(context, None, error)
            raise

    def _send(
        self,
        outbound: Outbound,
        choose: Choose | None,
        timeout_ms: int,
        context: SendContext | None,
        messages: int = 1,
    ) -> Send:
        if self.names.name:
            outbound = msgspec.structs.replace(outbound, topic=self.names.wrap(outbound.topic))
            self.factory.check_topic(outbound.topic)
        if self.sticky is not None and isinstance(choose, KeyedChoice):
            choose = self.sticky.choice(choose.key, messages, context)
        else:
            choose = self.names.wrap_choice(choose)
        return Send(outbound, choose, timeout_ms, self.instance.now_ms() + timeout_ms, context)

    def _timeout_ms(self, choose: Choose | None, given_ms: int | None) -> int:
        """Return `given_ms`, else the configured default. Raises ConfigInvalid if it is not positive."""
        if given_ms is not None:
            is_number = isinstance(given_ms, int | float) and not isinstance(given_ms, bool)
            if not is_number or not 0 < given_ms <= MAX_MS:
                raise ConfigInvalid(
                    f"timeout_ms is {given_ms!r}: it must be greater than 0 and at most {MAX_MS:,}"
                )
            return max(int(given_ms), 1)
        return self.config.send_timeout_ms if choose is None else self.config.delivery_timeout_ms

    def send(self, send: Send) -> asyncio.Future[SendResult]:
        """Send on the event loop of the instance, with retries. Return the future of the result."""
        future: asyncio.Future[SendResult] = self.instance.loop.create_future()
        self.sender.start(send, future)
        return future

    async def register(self, topics: Iterable[str]) -> None:
        """Register this producer with the brokers of `topics`, so that they can send requests to it.

        The routes of the topics must be cached.
        """
        new = [topic for topic in topics if topic not in self.registered]
        if new:
            beat = HeartbeatData(self.instance.client_id, producer_groups=[self.config.group])
            await self.instance.send_heartbeats(beat, new)
            self.registered.update(new)

    async def request(
        self,
        message: Message,
        sharding_key: str | None,
        queue: MessageQueue | None,
        timeout_ms: int | None,
    ) -> MessageExt:
        """Send `message` as a request and return the reply of a consumer.

        Raises DeadlineExceeded if no reply arrives within `timeout_ms`, by default `send_timeout_ms`, and the
        errors of `send`.
        """
        message = with_owned_body(message)
        choose = chooser(message, sharding_key, queue, None, None)
        timeout_ms = self._timeout_ms(None, timeout_ms)
        topic = self.names.wrap(message.topic)
        self.factory.check_topic(topic)
        request, reply = self.requests.begin(message, self.instance.client_id, timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.instance.routes.get(topic)
                await self.register([topic])
                await self.send(self.prepare(request, choose, timeout_ms))
                return await reply
        except TimeoutError as error:
            # A broker that has restarted pushes replies only after another heartbeat of this producer.
            self.registered.discard(topic)
            if isinstance(error, ClientError):
                raise
            raise DeadlineExceeded(
                f"no reply to the request to topic {message.topic!r} within {timeout_ms} ms: does a consumer "
                "of the topic reply, and fast enough?"
            ) from None
        finally:
            reply.cancel()

    async def reply(
        self,
        request: MessageExt,
        body: bytes | str,
        properties: Mapping[str, str] | None,
        timeout_ms: int | None,
    ) -> SendResult:
        """Send a reply to `request`, which a consumer has received. Return the result of the send.

        Raises ConfigInvalid if `request` is not a request message, and the errors of `send`, for example if
        the requester is not connected any more.
        """
        message = create_reply_message(request, body, properties)
        send = self.prepare(message, None, self._timeout_ms(None, timeout_ms))
        # The reply topic belongs to the cluster, so it has no namespace.
        code = int(RequestCode.SEND_REPLY_MESSAGE_V2)
        send.outbound = msgspec.structs.replace(send.outbound, code=code, topic=message.topic)
        send.choose = starting_at(request.broker_name)
        return await self.send(send)

    async def recall(self, topic: str, handle: str, timeout_ms: int | None) -> str:
        """Cancel a message of `topic` that waits for its delivery time. Return its UNIQ_KEY.

        Raises ConfigInvalid if `handle` is not a handle, BrokerRefused if the broker refuses it, for example
        after the delivery, and the other errors of a request.
        """
        topic = self.names.wrap(topic)
        self.factory.check_topic(topic)
        try:
            broker_name = RecallHandle.decode(handle).broker_name
        except MessageInvalid as error:
            raise ConfigInvalid(error.remark) from error
        await self.instance.routes.get(topic)
        header = RecallMessageHeader(topic, handle, self.config.group)
        command = RemotingCommand(RequestCode.RECALL_MESSAGE, header.to_ext())
        timeout_ms = None if timeout_ms is None else self._timeout_ms(None, timeout_ms)
        address = self.instance.master_of(topic, broker_name)
        return (await self.instance.invoke(address, command, timeout_ms)).ext["msgId"]

    async def queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of `topic` among which keys choose. A key's hash is an index of this sequence."""
        topic = self.names.wrap(topic)
        self.factory.check_topic(topic)
        queues = (await self.instance.routes.get(topic)).keyed
        return self.names.unwrap_queues(queues) if self.names.name else queues
