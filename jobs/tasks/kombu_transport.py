"""The kombu transport of RayMQ: Celery with `broker_url = "raymq://host:9876"` (docs/celery.md).

    queue Q         topic Q and consumer group Q
    exchange E      topic E|x; each queue Q bound to E reads it as group Q|xE, from its first bind on
    unacked         claims of pops, renewed by a thread until ack, reject or close
    eta of a task   delivery time of its message, which waits in the broker

A thread for each topic of a consumer pops into the inbox of the transport, from which kombu drains events.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import Empty, Full, Queue
from typing import Any, Final

from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

from cluster.client import Admin, MessageExt, PopConfig, PopConsumer, Producer, TlsConfig, errors
from cluster.client.config import ClientConfig, ProducerConfig
from cluster.client.errors import BrokerUnreachable, ClientError, ConfigInvalid, TopicNotFound
from cluster.client.namespaces import Namespace
from jobs.tasks import kombu_alias  # noqa: F401 - for programs without the entry point
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


def exchange_topic_of(exchange: str) -> str:
    """Return the topic of an exchange; no queue has it."""
    return f"{topic_of(exchange)}|x"


def group_of(queue: str, exchange: str) -> str:
    """Return the group with which a queue reads the topic of an exchange, or without one its own topic."""
    return f"{topic_of(queue)}|x{topic_of(exchange)}" if exchange else topic_of(queue)


class _Feed:
    """Reads one topic for a queue: that of the queue, or of an exchange to which the queue is bound."""

    def __init__(self, channel: Channel, queue: str, exchange: str = "") -> None:
        self.queue, self.exchange = queue, exchange
        self.is_stopped = self.no_ack = False
        self._channel = channel
        self._topic = exchange_topic_of(exchange) if exchange else topic_of(queue)
        self._began_ms = SystemClock().wall_ms()
        transport = channel.connection
        config = PopConfig(
            **transport.settings(),
            namespace=transport.namespace,
            group=group_of(queue, exchange),
            invisible_ms=transport.invisible_ms,
        )
        self.consumer = PopConsumer(config=config)

    def take(self, most: int, wait_ms: int, *, no_ack: bool) -> list[dict[str, Any]]:
        """Return kombu's payloads of up to `most` messages, claimed unless `no_ack`. Raises ClientError."""
        while found := self.consumer.receive(self._topic, max_messages=most, timeout_ms=wait_ms):
            wanted = [(payload, each) for each in found if (payload := self._payload(each)) is not None]
            unwanted = [each for each in found if all(each is not other for _, other in wanted)]
            if done := found if no_ack else unwanted:
                self.consumer.ack(done)
            if not no_ack:
                tags = {payload["properties"]["delivery_tag"]: (self, each) for payload, each in wanted}
                self._channel.claims.update(tags)
            if wanted:
                return [payload for payload, _ in wanted]
        return []

    def _payload(self, message: MessageExt) -> dict[str, Any] | None:
        """Return the payload of a message; None if it has expired, or the queue is not bound to its key."""
        try:
            payload = loads(message.body)
            info = payload["properties"]["delivery_info"]
        except (ValueError, TypeError, KeyError):  # of a producer without kombu
            info = {"exchange": self.exchange, "routing_key": self.queue}
            payload = {"body": message.body, "properties": {"delivery_info": info}}
            payload |= {"content-type": "application/data", "content-encoding": "binary"}
        payload["properties"]["delivery_tag"] = uuid()
        info["redelivered"] = message.reconsume_times > 0
        channel = self._channel
        if self.exchange and self.queue not in channel.queues_of(self.exchange, info["routing_key"]):
            return None
        arguments = channel.arguments.get(self.queue, {})
        ttls = (arguments.get("x-message-ttl"), payload["properties"].get("expiration"))
        age_ms = SystemClock().wall_ms() - message.store_timestamp
        expires_ms = arguments.get("x-expires")  # RabbitMQ would have deleted the queue since
        if expires_ms is not None and message.store_timestamp < self._began_ms - expires_ms:
            return None
        return None if any(ttl is not None and age_ms > int(ttl) for ttl in ttls) else payload

    def start(self, *, no_ack: bool) -> None:
        """Pop into the inbox, in a thread, until `is_stopped`."""
        self.no_ack = no_ack
        threading.Thread(target=self._run, name=f"raymq-{self._topic}", daemon=True).start()

    def _run(self) -> None:
        try:
            while most := self._channel.room(self):
                for payload in self.take(most, POLL_MS, no_ack=self.no_ack):
                    self._offer((self, payload))
            self._channel.give_back(self)
        except Exception as error:  # noqa: BLE001 - kombu raises it, and connects again
            self._offer(error)

    def _offer(self, item: tuple[_Feed, dict[str, Any]] | Exception) -> None:
        while not self.is_stopped:
            with suppress(Full):
                self._channel.connection.inbox.put(item, timeout=1)
                return


class QoS(virtual.QoS):
    """The unacknowledged messages of a channel."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self.channel.settle(delivery_tag, PopConsumer.ack)
        super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or make it visible again."""
        self.channel.settle(delivery_tag, PopConsumer.nack if requeue else PopConsumer.ack)
        super().ack(delivery_tag)

    def restore_unacked(self) -> list[Any]:
        """Make all messages visible again."""
        self.channel.give_back()
        self._delivered.clear()
        return []

    def has(self, delivery_tag: str) -> bool:
        """Return True if kombu has got a message."""
        return delivery_tag in self._delivered


class Channel(virtual.Channel):
    """A channel whose queues and exchanges are topics."""

    QoS = QoS
    supports_fanout = True
    connection: Transport

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.claims: dict[str, tuple[_Feed, MessageExt]] = {}
        self.arguments: dict[str, dict[str, Any]] = {}
        self._auto_delete: set[str] = set()
        self._feeds: list[_Feed] = []
        self._changed = threading.Condition()

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        """Return RabbitMQ's arguments of a queue."""
        return to_rabbitmq_queue_arguments(arguments or {}, **kwargs)

    def exchange_declare(self, exchange: str = "", type: str = "", **kwargs: Any) -> None:  # noqa: A002
        """Declare an exchange."""
        super().exchange_declare(exchange, type, **kwargs)
        if not kwargs.get("passive"):
            self.connection.ensure_topic(exchange_topic_of(exchange))

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange. Its queues remain."""
        if not (if_unused and self.get_table(exchange)):
            self.state.exchanges.pop(exchange, None)
            self.connection.delete_topic(exchange_topic_of(exchange))

    def queues_of(self, exchange: str, routing_key: str) -> set[str]:
        """Return the queues that this process has bound to an exchange for a routing key."""
        if exchange not in self.state.exchanges:
            return set()
        table = self.get_table(exchange)
        return set(self.typeof(exchange).lookup(table, exchange, routing_key, None))

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        self.connection.ensure_topic(topic_of(queue))
        self.arguments[queue] = kwargs.get("arguments") or {}
        if kwargs.get("auto_delete"):
            self._auto_delete.add(queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self.connection.has_topic(topic_of(queue))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        wrap = self.connection.wrap
        group, topic = wrap(group_of(queue, exchange)), wrap(exchange_topic_of(exchange))
        admin = self.connection.admin
        new = [each for each, offset in admin.committed_offsets(group, topic).items() if offset is None]
        if new:  # the group begins at the end, also where a pop of a new group would begin before it
            ends = admin.end_offsets(topic)
            admin.commit_offsets(group, {each: ends[each] for each in new})

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Delete a queue with its messages."""
        admin, own = self.connection.admin, [feed for feed in self._feeds if feed.queue == queue]
        known = admin.group_connection(self.connection.wrap(topic_of(queue))) if if_unused else None
        is_used = known is not None and len(known.connections) > sum(not feed.exchange for feed in own)
        if is_used or (if_empty and self._size(queue)):
            return
        for feed in own:
            self._close_feed(feed)
        self.connection.delete_topic(topic_of(queue))
        for exchange in self._exchanges_of(queue):
            group = self.connection.wrap(group_of(queue, exchange))
            admin.delete_group(group)
            admin.delete_topic(f"{RETRY_TOPIC_PREFIX}{group}")
        for binding in list(self.state.queue_bindings(queue)):
            self.queue_unbind(queue, binding.exchange, binding.routing_key, binding.arguments)

    def _size(self, queue: str) -> int:
        stats, name = self.connection.admin.group_stats, self.connection.wrap(topic_of(queue))
        groups = [self.connection.wrap(group_of(queue, each)) for each in self._exchanges_of(queue)]
        found = [*(stats(group).offsets.values() for group in groups)]
        if not stats(name).offsets:  # the queue has had no consumer
            found.append(stats(name, name).offsets.values())
        return sum((each.lag or 0) - (each.in_flight or 0) for offsets in found for each in offsets)

    def _purge(self, queue: str) -> int:
        left = size = self._size(queue)  # not more than there are now, or it might not end
        for feed in self._feeds_of(queue):
            while left > 0 and (taken := feed.take(min(left, MESSAGES_MAX), 0, no_ack=True)):
                left -= len(taken)
        return size - left

    def _exchanges_of(self, queue: str) -> set[str]:
        """Return the names of the exchanges of a queue, with the default exchange."""
        return {"", *(binding.exchange for binding in self.state.queue_bindings(queue))}

    def _feeds_of(self, queue: str) -> list[_Feed]:
        """Return the running feeds of a queue: one for its topic, and one for each of its exchanges."""
        exchanges = self._exchanges_of(queue)
        found = [feed for feed in self._feeds if feed.queue == queue and not feed.is_stopped]
        new = [_Feed(self, queue, each) for each in sorted(exchanges - {feed.exchange for feed in found})]
        self._feeds += new
        return found + new

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any) -> None:
        """Send a message to an exchange, or without one to the queue `routing_key`."""
        self._inplace_augment_message(message, exchange, routing_key)
        self.connection.send(exchange_topic_of(exchange) if exchange else topic_of(routing_key), message)

    def basic_qos(self, *args: Any, **kwargs: Any) -> None:
        """Limit the unacknowledged messages of each consumer."""
        with self._changed:
            super().basic_qos(*args, **kwargs)
            self._changed.notify_all()

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> None:
        """Consume from a queue."""
        super().basic_consume(queue, no_ack, *args, **kwargs)
        for feed in self._feeds_of(queue):
            feed.start(no_ack=no_ack)

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop to consume. An auto-delete queue is deleted if no other process consumes it."""
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        for feed in [feed for feed in self._feeds if feed.queue == queue]:
            with self._changed:
                feed.is_stopped = True
                self._changed.notify_all()
            self.give_back(feed)
        if queue in self._auto_delete:
            try:
                self.queue_delete(queue, if_unused=True)
            except ClientError as error:
                _log.warning("queue_not_deleted", queue=queue, error=str(error))
        self._close_idle_feeds()

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Return a message, or None."""
        for feed in self._feeds_of(queue):
            for payload in feed.take(1, 0, no_ack=no_ack):
                message = self.Message(payload, channel=self)
                if not no_ack:
                    self.qos.append(message, message.delivery_tag)
                return message
        return None

    def room(self, feed: _Feed) -> int:
        """Wait until a feed may receive messages, and return how many at once; 0 if it is stopped."""
        with self._changed:
            self._changed.wait_for(lambda: feed.is_stopped or self._free(feed) > 0)
            return 0 if feed.is_stopped else self._free(feed)

    def _free(self, feed: _Feed) -> int:
        prefetch = 0 if feed.no_ack else self.qos.prefetch_count
        held = sum(each.queue == feed.queue for each, _ in list(self.claims.values()))
        return min(MESSAGES_MAX, prefetch - held) if prefetch else MESSAGES_MAX

    def settle(self, delivery_tag: str, call: Callable[[PopConsumer, MessageExt], None]) -> None:
        """Acknowledge a message or make it visible again, unless its claim was lost. Raises ClientError."""
        with self._changed:
            claim = self.claims.pop(delivery_tag, None)
            self._changed.notify_all()
            if claim is not None:
                with suppress(errors.ReceiptExpired):
                    call(claim[0].consumer, claim[1])
        self._close_idle_feeds()

    def renew(self) -> None:
        """Keep the claimed messages invisible. Raises ClientError."""
        for tag in list(self.claims):
            with self._changed:  # the renewal changes the receipt that an ack needs
                if (claim := self.claims.get(tag)) is None:
                    continue
                try:
                    claim[0].consumer.extend(claim[1], self.connection.invisible_ms)
                except errors.BrokerRefused:
                    _log.warning("claim_lost", queue=claim[0].queue, message=claim[1].msg_id)
                    del self.claims[tag]

    def give_back(self, feed: _Feed | None = None) -> None:
        """Make messages visible again: those of a feed that kombu has not got, or all.

        If their broker fails, they become visible when their claims end.
        """
        for tag, (each, _) in list(self.claims.items()):
            if feed is None or (each is feed and not self.qos.has(tag)):
                try:
                    self.settle(tag, PopConsumer.nack)
                except ClientError:
                    return

    def close(self) -> None:
        """Close the channel. Unacknowledged messages become visible again."""
        if not self.closed:
            super().close()
            for feed in list(self._feeds):
                self._close_feed(feed)

    def _close_idle_feeds(self) -> None:
        for feed in list(self._feeds):
            if feed.is_stopped and all(each is not feed for each, _ in list(self.claims.values())):
                self._close_feed(feed)

    def _close_feed(self, feed: _Feed) -> None:
        feed.is_stopped = True
        self.claims = {tag: claim for tag, claim in self.claims.items() if claim[0] is not feed}
        self._feeds = [each for each in self._feeds if each is not feed]
        feed.consumer.close()


class Transport(virtual.Transport):
    """Connects kombu with a cluster."""

    Channel = Channel
    default_port = 9876
    driver_type = driver_name = "raymq"
    connection_errors = (
        *virtual.Transport.connection_errors,
        *(errors.BrokerBusy, BrokerUnreachable, errors.ClientClosed, errors.DeadlineExceeded),
        *(errors.NameserverUnreachable, errors.SendFailed),
    )
    channel_errors = (*virtual.Transport.channel_errors, errors.BrokerRefused)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset({"direct", "topic", "fanout"}))
    inbox: Queue[tuple[_Feed, dict[str, Any]] | Exception]
    admin: Admin
    _producer: Producer

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.namespace = str(client.virtual_host or "").strip("/")
        self.wrap = Namespace(self.namespace).wrap
        self.invisible_ms = int(client.transport_options.get("visibility_timeout", 60) * 1000)
        self._topics: set[str] = set()
        self._is_closed = threading.Event()
        self._pid = os.getpid()

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
        self.inbox = Queue(INBOX_MAX)
        self._topics.clear()
        self._is_closed.clear()
        self.admin = Admin(config=ClientConfig(**self.settings(), sticky_broker_ms=0))
        self._producer = Producer(config=ProducerConfig(**self.settings(), namespace=self.namespace))
        if not self.admin.cluster_info().brokers:
            raise BrokerUnreachable("the nameservers list no broker: start one")
        threading.Thread(target=self._renew, name="raymq-renewal", daemon=True).start()
        return super().establish_connection()

    def close_connection(self, connection: Transport) -> None:
        """Close the channels and clients, unless they are of the parent of this process."""
        if self._pid == os.getpid():
            self.stop_renewal()
            super().close_connection(connection)
            self._producer.close()
            self.admin.close()

    def stop_renewal(self) -> None:
        """Let the claims end, unless they are settled before."""
        self._is_closed.set()

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """Deliver a message. Raises TimeoutError, and the error of a feed."""
        while True:
            try:
                item = self.inbox.get(timeout=timeout)
            except Empty:
                raise TimeoutError from None
            if isinstance(item, Exception):
                raise item
            if not item[0].is_stopped:
                self._deliver(item[1], item[0].queue)
                return

    def has_topic(self, topic: str) -> bool:
        """Return True if a topic exists. Raises ClientError."""
        if topic not in self._topics:
            try:
                self.admin.route(self.wrap(topic))
            except TopicNotFound:
                return False
            self._topics.add(topic)
        return True

    def ensure_topic(self, topic: str) -> None:
        """Create a topic if it does not exist, with one queue: its messages have an order."""
        if not self.has_topic(topic):
            self.admin.create_topic(self.wrap(topic), queues=1)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self._topics.discard(topic)
        self.admin.delete_topic(self.wrap(topic))

    def send(self, topic: str, message: dict[str, Any]) -> None:
        """Send a message; drop it if its queue does not exist, as RabbitMQ does. Raises ClientError."""
        if not self.has_topic(topic):
            _log.warning("message_unroutable", topic=topic)
            return
        eta = message["headers"].get("eta")
        limit = datetime.now(UTC) + LONGEST_DELAY
        at = min(datetime.fromisoformat(eta).astimezone(UTC), limit) if eta else None
        key = message["properties"].get("correlation_id")
        self._producer.send(topic, dumps(message), keys=key and [key], deliver_at=at)

    def _renew(self) -> None:
        while not self._is_closed.wait(self.invisible_ms / 3000):
            for channel in list(self.channels):
                try:
                    channel.renew()
                except ClientError as error:
                    _log.warning("renewal_failed", error=str(error))


def _tls(given: Any) -> TlsConfig | None:
    """Return the TLS settings of kombu's `ssl`. Raises ConfigInvalid."""
    if not isinstance(given, dict):
        return TlsConfig() if given else None
    unknown = given.keys() - _TLS_NAMES.keys() - {"cert_reqs"}
    if unknown:
        known = ", ".join(_TLS_NAMES)
        raise ConfigInvalid(f"broker_use_ssl has {', '.join(sorted(unknown))}: give {known} and cert_reqs")
    files = {_TLS_NAMES[name]: path for name, path in given.items() if name in _TLS_NAMES}
    return TlsConfig(**files, verify=given.get("cert_reqs", ssl.CERT_REQUIRED) != ssl.CERT_NONE)
