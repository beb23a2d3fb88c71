"""What both faces of the producer share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from actors.remoting.bodies.groups import HeartbeatData
from cluster.client.config import Nameservers, ProducerConfig
from cluster.client.errors import ClientError, ConfigInvalid
from cluster.client.hooks import SendContext
from cluster.client.producer.faults import MQFaultStrategy
from cluster.client.producer.hooked_sends import HookedOutcome, SendHooks
from cluster.client.producer.lanes import Lanes
from cluster.client.producer.outbound import Outbound, OutboundFactory, rejected
from cluster.client.producer.sender import Choose, Outcome, Sender
from cluster.client.selectors import MessageQueueSelector, RoundRobin, queue_index
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.topic_route import TopicRoute
from store.clock import Clock, SystemClock
from store.logs import get_logger
from store.message.message import Message
from store.message.message_queue import MessageQueue
from store.store_errors import MessageIllegal

log = get_logger(__name__)


def producer_config(
    nameservers: Nameservers | None, group: str | None, config: ProducerConfig | None
) -> ProducerConfig:
    """`config` with what was given beside it; raises ConfigInvalid early, before anything is opened."""
    config = ProducerConfig() if config is None else config
    if not isinstance(config, ProducerConfig):
        raise ConfigInvalid(f"config is a {type(config).__name__}: a producer needs a ProducerConfig")
    if nameservers is not None:
        config = replace(config, nameservers=nameservers)
    if group is not None:
        config = replace(config, group=group)
    config.addresses()
    return config


class ProducerCore:
    """Routes, sender and lanes of one producer. `open` and `close` run on the loop; `factory` is for any
    thread.
    """

    def __init__(self, config: ProducerConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock: Clock = clock or SystemClock()
        self.factory = OutboundFactory(config, self.clock)
        self.hooks = SendHooks(config)
        self.instance: ClientInstance
        self.sender: Sender
        self.lanes: Lanes
        self._topics: set[str] = set()

    def open(self) -> None:
        """Make the connections' home on the running loop; nothing is dialled yet."""
        config = self.config
        self.instance = ClientInstance(
            config,
            clock=self.clock,
            auto_create_queues=config.default_topic_queue_nums,
            on_route=self._on_route,
        )
        # At random, as RocketMQ's do: many short-lived producers must not all fill the first queue.
        turns = RoundRobin(random.randrange(1 << 16))
        strategy = MQFaultStrategy(turns, self.clock, is_enabled=config.send_latency_fault_enable)
        self.sender = Sender(self.instance, config, strategy)
        self.lanes = Lanes(self.instance, config)
        self.instance.start_route_refresh()
        self.instance.start_heartbeats(self._heartbeat, lambda: list(self._topics))

    async def close(self) -> None:
        """Wait for what is under way – every send has its deadline –, then end the connections."""
        try:
            await self.sender.flush()
        finally:  # also where the wait was interrupted: what is under way fails then
            await self.instance.close()

    def ready(self, message: Message, *, is_oneway: bool = False) -> tuple[Outbound, SendContext | None]:
        """The request that sends `message`, after the hooks have seen it. Raises MessageRejected."""
        if not self.hooks:
            return self.factory.message(message), None
        context = self.hooks.before([message], is_oneway=is_oneway)
        try:
            return self.factory.message(context.messages[0]), context
        except ClientError as error:
            self.hooks.after(context, None, error)
            raise

    def ready_batch(self, messages: Sequence[Message]) -> tuple[Outbound, SendContext | None]:
        """As `ready`, for a batch. Raises ConfigInvalid for an empty one."""
        if not self.hooks or not messages:
            return self.factory.batch(messages), None
        context = self.hooks.before(messages)
        try:
            return self.factory.batch(context.messages), context
        except ClientError as error:
            self.hooks.after(context, None, error)
            raise

    def watched(self, outcome: Outcome, context: SendContext | None) -> Outcome:
        """`outcome`, of which the hooks hear first."""
        return outcome if context is None else HookedOutcome(outcome, self.hooks, context)

    def _on_route(self, route: TopicRoute) -> None:
        self._topics.add(route.topic)

    def _heartbeat(self) -> HeartbeatData:
        return HeartbeatData(self.instance.client_id, producer_groups=[self.config.group])

    def timeout_ms(self, choose: Choose | None, given_ms: int | None) -> int:
        """How long a send may take: what the call says, else by whether it has a queue of its own. Raises
        ConfigInvalid.
        """
        if given_ms is not None:
            if not isinstance(given_ms, int | float) or not given_ms > 0:
                raise ConfigInvalid(f"timeout_ms is {given_ms!r}: it must be over 0")
            return max(int(given_ms), 1)
        return self.config.send_timeout_ms if choose is None else self.config.delivery_timeout_ms

    async def oneway(
        self, outbound: Outbound, choose: Choose | None, context: SendContext | None = None
    ) -> None:
        """Send without wanting an answer."""
        instance = self.instance
        try:
            await self._oneway(instance, outbound, choose)
        except Exception as error:
            if context is not None:
                self.hooks.after(context, None, error)
            raise
        if context is not None:
            self.hooks.after(context)

    async def _oneway(self, instance: ClientInstance, outbound: Outbound, choose: Choose | None) -> None:
        route = await instance.routes.get(outbound.topic)
        queue = choose(route) if choose is not None else self.sender.in_turn(route)
        address = instance.master_of(queue.topic, queue.broker_name)
        instance.remoting.oneway(address, outbound.command(queue.queue_id))

    async def queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """The queues that keyed sends to `topic` are spread over, in the order of the hash."""
        try:
            self.factory.check_topic(topic)
        except MessageIllegal as error:
            raise rejected(error) from error
        return (await self.instance.routes.get(topic)).keyed


def as_message(
    message: Message | str,
    body: bytes | str | None,
    tags: str | None,
    keys: str | Sequence[str] | None,
    properties: dict[str, str] | None,
) -> Message:
    """The message that a call describes: a Message alone, or a topic and a body with the rest. Raises
    ConfigInvalid.
    """
    if isinstance(message, Message):
        if body is not None or tags is not None or keys is not None or properties is not None:
            raise ConfigInvalid("give a Message alone, or a topic with body, tags, keys and properties")
        return message
    if body is None:
        raise ConfigInvalid(f"send to {message!r} without a body: give bytes or text")
    data = body.encode() if isinstance(body, str) else body
    try:
        return Message(message, data, tags, keys, properties)
    except TypeError as error:
        what, _, wrong = str(error).partition(" ")
        raise ConfigInvalid(f"{what} of a message to {message!r} {wrong}") from error


def check_queue(topic: str, queue: object) -> None:
    """Whether messages of `topic` can be meant for `queue`. Raises ConfigInvalid."""
    if not isinstance(queue, MessageQueue):
        raise ConfigInvalid(f"queue is {queue!r}: give one of Producer.queues(topic)")
    if queue.queue_id < 0:
        raise ConfigInvalid(f"{queue} does not exist: give one of Producer.queues(topic)")
    if queue.topic != topic:
        raise ConfigInvalid(f"a message of topic {topic!r} cannot go to {queue}")


def chooser(
    message: Message,
    sharding_key: str | None,
    queue: MessageQueue | None,
    selector: MessageQueueSelector | None,
    argument: object,
) -> Choose | None:
    """How the queue is chosen; None: any in turn. Raises ConfigInvalid when more than one way is given."""
    if (sharding_key is not None) + (queue is not None) + (selector is not None) > 1:
        raise ConfigInvalid("give one of sharding_key, queue and selector")
    if queue is not None:
        check_queue(message.topic, queue)
        return lambda _route: queue
    if sharding_key is not None:
        if not isinstance(sharding_key, str):
            raise ConfigInvalid(
                f"sharding_key of a message to {message.topic!r} is {sharding_key!r}: give a text"
            )
        return lambda route: _keyed(route)[queue_index(sharding_key, len(route.keyed))]
    if selector is not None:
        if not callable(selector) or isinstance(selector, type):
            raise ConfigInvalid(
                f"the selector is {selector!r}: give a function of queues, message and argument, or an "
                "instance of a class such as SelectMessageQueueByHash"
            )
        return _selected(selector, message, argument)
    if argument is not None:
        raise ConfigInvalid(f"the argument {argument!r} is for a selector, and none is given")
    return None


def _keyed(route: TopicRoute) -> Sequence[MessageQueue]:
    if not route.keyed:
        raise ClientError(f"topic {route.topic!r} has no writable queue")
    return route.keyed


def _selected(
    selector: MessageQueueSelector, message: Message, argument: object
) -> Callable[[TopicRoute], MessageQueue]:
    def choose(route: TopicRoute) -> MessageQueue:
        queue = selector(_keyed(route), message, argument)
        if not isinstance(queue, MessageQueue) or queue.topic != message.topic:
            raise ConfigInvalid(
                f"the selector gave {queue!r} for a message of topic {message.topic!r}: "
                "it must give one of the queues that it gets"
            )
        return queue

    return choose
