"""The kombu transport of RayMQ: Celery with `broker_url = "raymq://host:9876"` (docs/celery.md).

    queue Q         topic Q and consumer group Q
    binding         an offset that group Q|kKEY|kE has in topic E|x of exchange E, to which no message is sent
    unacked         claims of pops, renewed until ack, reject or close
    eta of a task   delivery time of its message, which waits in the broker

A coroutine for each consumer pops into the inbox of the transport, from which kombu drains events.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import Empty, Queue
from typing import Any, Final

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from cluster.client import MessageExt, PopConfig, TlsConfig, errors
from cluster.client.aio import Admin, PopConsumer, Producer
from cluster.client.config import ClientConfig, ProducerConfig
from cluster.client.errors import BrokerUnreachable, ClientClosed, ClientError, ConfigInvalid, TopicNotFound
from cluster.client.namespaces import Namespace
from cluster.client.transport.loop_thread import LoopThread
from jobs.tasks import kombu_alias  # noqa: F401 - for programs without the entry point
from jobs.tasks.claim import Claim
from jobs.tasks.topics import ensure_topics, read_load
from store.common.clock import SystemClock
from store.common.logs import get_logger
from store.message.pop_records import MESSAGES_MAX
from store.message.validate import RETRY_TOPIC_PREFIX

_log = get_logger(__name__)

POLL_MS: Final = 5_000
INBOX_MAX: Final = 1_000
LONGEST_DELAY: Final = timedelta(seconds=259_000)
"""Just below the default of `timer_max_delay_s`. The worker waits for the rest of a longer delay."""
_TLS_NAMES: Final = {"ca_certs": "ca_file", "certfile": "certificate", "keyfile": "key"}


def topic_of(queue: str) -> str:
    """Return the topic and group of a queue: bytes other than letters, digits, _ and - become |XX."""
    return re.sub(rb"[^\w-]", lambda found: b"|%02X" % found[0][0], queue.encode()).decode()


def name_of(topic: str) -> str:
    """Return the name that `topic_of` has encoded."""
    return re.sub(rb"\|(..)", lambda found: bytes([int(found[1], 16)]), topic.encode()).decode()


def exchange_topic_of(exchange: str) -> str:
    """Return the topic of an exchange; no queue has it."""
    return f"{topic_of(exchange)}|x"


class Channel(virtual.Channel):
    """A channel whose queues are topics."""

    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.undelivered: set[str] = set()
        self._claims: dict[str, tuple[str, Claim]] = {}
        self._consumers_of: dict[str, PopConsumer] = {}
        self._transport, self._admin = connection, connection.admin
        self._run, self._wrap = connection.loop.run, connection.names.wrap
        self._qos = self.QoS(self)
        self._began_ms = SystemClock().wall_ms()
        self._changed = asyncio.Event()

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Return RabbitMQ's arguments of a queue."""
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange. Its queues remain."""
        if not (if_unused and self.get_table(exchange)):
            self.state.exchanges.pop(exchange, None)
            self._run(self._admin.delete_topic(self._wrap(exchange_topic_of(exchange))))

    def get_table(self, exchange: str) -> list[Any]:
        """Return the bindings of an exchange."""
        try:
            groups = self._run(self._admin.groups_of_topic(self._wrap(exchange_topic_of(exchange))))
        except TopicNotFound:
            return []
        bindings = [map(name_of, self._transport.names.unwrap(group).split("|k")) for group in groups]
        prepare = self.typeof(exchange).prepare_bind
        return [prepare(queue, exchange, key, None) for queue, key, _ in bindings]

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        self._ensure_topic(exchange_topic_of(exchange))
        ends = self._run(self._admin.end_offsets(self._wrap(exchange_topic_of(exchange))))
        self._run(self._admin.commit_offsets(self._binding(queue, exchange, routing_key), ends))

    def queue_unbind(self, queue: str, exchange: str = "", routing_key: str = "", *_: Any, **__: Any) -> None:
        """Remove a binding."""
        self.state.binding_delete(queue, exchange, routing_key)
        self._run(self._admin.delete_group(self._binding(queue, exchange, routing_key)))

    def _binding(self, *names: str) -> str:
        queue, exchange, routing_key = map(topic_of, names)
        return self._wrap(f"{queue}|k{routing_key}|k{exchange}")

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:
        for queue in self._lookup(exchange, routing_key):
            self._put(queue, message)

    def _ensure_topic(self, topic: str, queues: int = 1, attributes: dict[str, str] | None = None) -> None:
        """Create a topic if it does not exist, by default with one queue: its messages have an order."""
        self._run(ensure_topics(self._admin, [self._wrap(topic)], queues, attributes))

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        declared = self._transport.declared.setdefault(queue, {})
        declared |= kwargs | (kwargs.get("arguments") or {})
        if (most_urgent := declared.get("x-max-priority")) is None:
            self._ensure_topic(topic_of(queue))
        else:
            self._ensure_topic(topic_of(queue), most_urgent + 1, {"message.type": "PRIORITY"})

    def _has_queue(self, queue: str, **_: Any) -> bool:
        try:
            self._run(self._admin.route(self._wrap(topic_of(queue))))
        except TopicNotFound:
            return False
        return True

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Delete a queue with its messages."""
        name = self._wrap(topic_of(queue))
        known = self._run(self._admin.group_connection(name)) if if_unused else None
        is_used = known is not None and len(known.connections) > (queue in self._consumers_of)
        if is_used or (if_empty and self._size(queue)):
            return
        if (consumer := self._consumers_of.pop(queue, None)) is not None:
            self._run(consumer.close())
        for binding in list(self.state.queue_bindings(queue)):
            self.queue_unbind(queue, binding.exchange, binding.routing_key)
        self._transport.declared.pop(queue, None)
        self._run(self._admin.delete_group(name))
        for topic in (name, f"{RETRY_TOPIC_PREFIX}{name}"):
            self._run(self._admin.delete_topic(topic))

    def _size(self, queue: str) -> int:
        name = self._wrap(topic_of(queue))
        return self._run(read_load(self._admin, name, name))[0] or 0

    def _purge(self, queue: str) -> int:
        left = size = self._size(queue)  # not more than there are now, or it might not end
        while left > 0 and (taken := self._run(self._take(queue, min(left, MESSAGES_MAX), 0))):
            left -= len(taken)
            for payload in taken:
                self._settle(payload["properties"]["delivery_tag"], Claim.ack)
        return size - left

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        if queue not in self._transport.declared and not self._has_queue(queue):  # RabbitMQ drops it, too
            _log.warning("message_unroutable", queue=queue)
            return
        eta = message["headers"].get("eta")
        at = datetime.fromisoformat(eta).astimezone(UTC) if eta else None
        has_priorities = at is None and "x-max-priority" in self._transport.declared.get(queue, {})
        sent = self._transport.producer.send(
            topic_of(queue),
            dumps(message),
            keys=message["properties"].get("correlation_id"),
            deliver_at=at and min(at, datetime.now(UTC) + LONGEST_DELAY),
            priority=self._get_message_priority(message) if has_priorities else None,
        )
        self._run(sent)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for payload in self._run(self._take(queue, 1, 0)):
            return payload
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Return a message, or None."""
        message = super().basic_get(queue, no_ack)
        if message is not None and no_ack:
            self._settle(message.delivery_tag, Claim.ack)
        return message

    def basic_qos(self, *args: Any, **kwargs: Any) -> None:
        """Limit the unacknowledged messages of each consumer."""
        super().basic_qos(*args, **kwargs)
        self.wake()

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Consume from a queue."""

        def acknowledged(message: Any) -> None:
            self._settle(message.delivery_tag, Claim.ack)
            callback(message)

        super().basic_consume(queue, no_ack, acknowledged if no_ack else callback, consumer_tag, **kwargs)
        asyncio.run_coroutine_threadsafe(self._feed(queue, consumer_tag), self._transport.loop.loop)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop to consume. An auto-delete queue is deleted if no other process consumes it."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is None:
            return
        self._run(self._return_undelivered(queue))
        self.wake()
        if self._transport.declared.get(queue, {}).get("auto_delete"):
            try:
                self.queue_delete(queue, if_unused=True)
            except ClientError as error:
                _log.warning("queue_not_deleted", queue=queue, error=str(error))

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message."""
        self._settle(delivery_tag, Claim.ack)
        super().basic_ack(delivery_tag, multiple)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or make it visible again."""
        self._settle(delivery_tag, Claim.nack if requeue else Claim.ack)
        super().basic_ack(delivery_tag)

    def _restore(self, message: Any) -> None:
        try:
            self._settle(message.delivery_tag, Claim.nack)
        except ClientError:  # all become visible when their claims end
            self._claims.clear()

    def _settle(self, delivery_tag: str, call: Callable[[Claim], Coroutine[Any, Any, None]]) -> None:
        """Acknowledge a message or make it visible again, unless its claim was lost. Raises ClientError."""
        _, claim = self._claims.pop(delivery_tag, (None, None))
        if claim is not None:
            with suppress(errors.ReceiptExpired, ClientClosed):
                self._run(call(claim))
            self.wake()

    def wake(self) -> None:
        """Make the consumers look if they may take more messages."""
        self._transport.loop.post(self._changed.set)

    def close(self) -> None:
        """Close the channel. Unacknowledged messages become visible again."""
        if not self.closed:
            super().close()
            for consumer in self._consumers_of.values():
                self._run(consumer.close())

    async def _feed(self, queue: str, consumer_tag: str) -> None:
        """Pop into the inbox until the consumer is cancelled."""
        inbox = self._transport.inbox
        try:
            while consumer_tag in self._consumers:
                prefetch = self.qos.prefetch_count
                held = sum(each == queue for each, _ in self._claims.values())
                if (free := prefetch - held if prefetch else INBOX_MAX - inbox.qsize()) <= 0:
                    await self._changed.wait()
                    self._changed.clear()
                    continue
                for payload in await self._take(queue, min(free, MESSAGES_MAX), POLL_MS):
                    self.undelivered.add(payload["properties"]["delivery_tag"])
                    if consumer_tag in self._consumers:
                        inbox.put((self, queue, payload))
            await self._return_undelivered(queue)
        except Exception as error:  # noqa: BLE001 - kombu raises it, and connects again
            if consumer_tag in self._consumers:
                inbox.put(error)

    async def _take(self, queue: str, most: int, wait_ms: int) -> list[dict[str, Any]]:
        """Claim up to `most` messages and return their payloads. Raises ClientError."""
        transport, topic = self._transport, topic_of(queue)
        payloads: list[dict[str, Any]] = []
        if (consumer := self._consumers_of.get(queue)) is None:
            config = PopConfig(
                **transport.settings(),
                group=topic,
                namespace=transport.names.name,
                invisible_ms=transport.invisible_ms,
            )
            consumer = self._consumers_of[queue] = PopConsumer(config=config)
        while not payloads and (
            received := await consumer.receive(topic, max_messages=most, timeout_ms=wait_ms)
        ):
            for message in received:
                payload = payload_of(message, queue)
                if self._is_expired(message, payload, queue):
                    await consumer.ack(message)
                    continue
                claim = Claim(consumer, message, transport.invisible_ms)
                self._claims[payload["properties"]["delivery_tag"]] = queue, claim
                payloads.append(payload)
        return payloads

    def _is_expired(self, message: MessageExt, payload: dict[str, Any], queue: str) -> bool:
        declared, stored_ms = self._transport.declared.get(queue, {}), message.store_timestamp
        expires_ms = declared.get("x-expires")
        if expires_ms is not None and stored_ms < self._began_ms - expires_ms:
            return True  # RabbitMQ would have deleted the queue since
        ttls = (declared.get("x-message-ttl"), payload["properties"].get("expiration"))
        return any(ttl is not None and SystemClock().wall_ms() - stored_ms > int(ttl) for ttl in ttls)

    async def _return_undelivered(self, queue: str) -> None:
        for tag, (each, claim) in list(self._claims.items()):
            if each == queue and tag in self.undelivered:
                self.undelivered.discard(tag)
                self._claims.pop(tag, None)
                with suppress(ClientError):  # it becomes visible when its claim ends
                    await claim.nack()


def payload_of(message: MessageExt, queue: str) -> dict[str, Any]:
    """Return kombu's payload of a message."""
    try:
        payload: dict[str, Any] = loads(message.body)
        info = payload["properties"]["delivery_info"]
    except (ValueError, TypeError, KeyError):  # of a producer without kombu
        info = {"exchange": "", "routing_key": queue}
        payload = {"body": message.body, "properties": {"delivery_info": info}}
        payload |= {"content-type": "application/data", "content-encoding": "binary"}
    payload["properties"]["delivery_tag"] = uuid()
    info["redelivered"] = message.reconsume_times > 0
    return payload


class Transport(virtual.Transport):
    """Connects kombu with a cluster."""

    Channel = Channel
    default_port = 9876
    driver_type = driver_name = "raymq"
    connection_errors = (
        *virtual.Transport.connection_errors,
        *(errors.BrokerBusy, BrokerUnreachable, ClientClosed, errors.DeadlineExceeded),
        *(errors.NameserverUnreachable, errors.SendFailed),
    )
    channel_errors = (*virtual.Transport.channel_errors, errors.BrokerRefused)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset({"direct", "topic", "fanout"}))
    inbox: Queue[Any]
    loop: LoopThread
    admin: Admin
    producer: Producer

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.names = Namespace(str(client.virtual_host or "").strip("/"))
        self.invisible_ms = int(client.transport_options.get("visibility_timeout", 60) * 1000)
        self.declared: dict[str, dict[str, Any]] = {}

    def settings(self) -> dict[str, Any]:
        """Return the nameservers, keys and TLS settings of the URL. Raises ConfigInvalid."""
        client = self.client
        urls = client.alt or [f"{client.hostname or 'localhost'}:{client.port or self.default_port}"]
        hosts = [url.rpartition("://")[2].rpartition("@")[2].partition("/")[0] for url in urls]
        return {
            "nameservers": [host if ":" in host else f"{host}:{self.default_port}" for host in hosts],
            "access_key": client.userid or "",
            "secret_key": client.password or "",
            "tls": _tls(client.ssl),
        }

    def establish_connection(self) -> Any:
        """Connect. Raises ClientError."""
        self.loop, self.inbox = LoopThread.shared(), Queue()
        self.state.clear()
        self.admin = Admin(config=ClientConfig(**self.settings(), sticky_broker_ms=0))
        self.producer = Producer(config=ProducerConfig(**self.settings(), namespace=self.names.name))
        if not self.loop.run(self.admin.cluster_info()).brokers:
            raise BrokerUnreachable("the nameservers list no broker: start one")
        return super().establish_connection()

    def close_connection(self, connection: Transport) -> None:
        """Close the channels and clients, unless they are of the parent of this process."""
        if not self.loop.is_forked:
            super().close_connection(connection)
            self.loop.run(self.producer.close())
            self.loop.run(self.admin.close())

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver a message. Raises TimeoutError, and the error of a feed."""
        while True:
            try:
                item = self.inbox.get(timeout=timeout)
            except Empty:
                raise TimeoutError from None
            if isinstance(item, Exception):
                raise item
            channel, queue, payload = item
            channel.wake()
            if (tag := payload["properties"]["delivery_tag"]) in channel.undelivered:
                channel.undelivered.discard(tag)
                return self._deliver(payload, queue)


def _tls(given: Any) -> TlsConfig | None:
    """Return the TLS settings of kombu's `ssl`. Raises ConfigInvalid."""
    if not isinstance(given, dict):
        return TlsConfig() if given else None
    files = {name: path for name, path in given.items() if name != "cert_reqs"}
    if unknown := files.keys() - _TLS_NAMES:
        known = ", ".join(_TLS_NAMES)
        raise ConfigInvalid(f"broker_use_ssl has {', '.join(sorted(unknown))}: give {known} and cert_reqs")
    verify = given.get("cert_reqs", ssl.CERT_REQUIRED) != ssl.CERT_NONE
    return TlsConfig(**{_TLS_NAMES[name]: path for name, path in files.items()}, verify=verify)
