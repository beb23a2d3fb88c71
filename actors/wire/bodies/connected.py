"""Bodies that list connected producers and consumers, and subscriptions.

Class and field names are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body`).
"""

from collections.abc import Iterable, Mapping

from actors.wire.bodies.body import Body, encode_json, wire
from actors.wire.bodies.groups import SubscriptionData
from actors.wire.command import Buffer
from actors.wire.header import AnyListOf, AnyTableOf, ClientId, Group, Long, Name, Topic


class ClientConnection(Body):
    """A connected client; `client_addr` is `ip:port`."""

    client_id: ClientId = ""
    client_addr: Name = ""
    language: Name = ""
    version: Long = 0


class ProducerInfo(Body):
    """A connected producer; `last_update_timestamp` is the time of its last heartbeat (milliseconds)."""

    client_id: ClientId = ""
    remote_ip: Name = wire(name="remoteIP", default="")
    language: Name = ""
    version: Long = 0
    last_update_timestamp: Long = 0


class ConsumerConnection(Body):
    """Response body of GET_CONSUMER_CONNECTION_LIST."""

    connections: AnyListOf[ClientConnection] = wire(name="connectionSet", default_factory=list)
    subscriptions: AnyTableOf[Topic, SubscriptionData] = wire(name="subscriptionTable", default_factory=dict)
    consume_type: Name = ""
    message_model: Name = ""
    consume_from_where: Name = ""


class _ProducerConnection(Body):
    title = "ProducerConnection"

    connection_set: AnyListOf[ClientConnection] = wire(default_factory=list)


def encode_producers(connections: Iterable[ClientConnection]) -> bytes:
    """Return the response body of GET_PRODUCER_CONNECTION_LIST."""
    return _ProducerConnection(list(connections)).encode()


def decode_producers(body: Buffer) -> list[ClientConnection]:
    """Return the connections in a GET_PRODUCER_CONNECTION_LIST response. Raises Refused if it is invalid."""
    return _ProducerConnection.decode(body).connection_set


def encode_subscription(group: str, topic: str, subscription: SubscriptionData | None) -> bytes:
    """Return the response body of QUERY_SUBSCRIPTION_BY_CONSUMER."""
    content = {"group": group, "topic": topic}
    return encode_json(content if subscription is None else {**content, "subscriptionData": subscription})


def encode_producer_table(groups: Mapping[str, Iterable[ProducerInfo]]) -> bytes:
    """Return the response body of GET_ALL_PRODUCER_INFO."""
    return encode_json({"data": {group: list(producers) for group, producers in groups.items()}})


class _ProducerTable(Body):
    title = "ProducerTableInfo"

    data: AnyTableOf[Group, AnyListOf[ProducerInfo]] = wire(default_factory=dict)


def decode_producer_table(body: Buffer) -> dict[str, list[ProducerInfo]]:
    """Return the producers in a GET_ALL_PRODUCER_INFO response. Raises Refused if it is invalid."""
    return _ProducerTable.decode(body).data
