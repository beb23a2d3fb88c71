"""Bodies about who is connected: producers, consumers and what they subscribe to.

Names and fields are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from actors.remoting.bodies.flat import Flat
from actors.remoting.bodies.groups import SubscriptionData
from actors.remoting.command import Buffer
from actors.remoting.json_fields import get_object, get_objects, get_str, load_object


@dataclass(slots=True)
class ClientConnection(Flat):
    """A client that is connected; the address is `ip:port`."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "JAVA"
    version: int = 0


@dataclass(slots=True)
class ProducerInfo:
    """A producer; `last_update_timestamp` is when it was last heard of."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_timestamp: int

    def to_json(self) -> dict[str, Any]:
        """As it goes into a body."""
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_timestamp,
            "remoteIP": self.remote_ip,
            "version": self.version,
        }


@dataclass(slots=True)
class ConsumerConnection:
    """The answer of GET_CONSUMER_CONNECTION_LIST."""

    connections: list[ClientConnection] = field(default_factory=list)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        content = load_object(body, "ConsumerConnection")
        table = get_object(content, "subscriptionTable")
        return cls(
            [ClientConnection.from_json(each) for each in get_objects(content, "connectionSet")],
            {topic: SubscriptionData.from_json(table[topic]) for topic in table},
            get_str(content, "consumeType"),
            get_str(content, "messageModel"),
            get_str(content, "consumeFromWhere"),
        )

    def encode(self) -> bytes:
        """The body."""
        return orjson.dumps(
            {
                "connectionSet": [each.to_json() for each in self.connections],
                "consumeFromWhere": self.consume_from_where,
                "consumeType": self.consume_type,
                "messageModel": self.message_model,
                "subscriptionTable": {
                    topic: subscription.to_json() for topic, subscription in self.subscriptions.items()
                },
            }
        )


def encode_producers(connections: Iterable[ClientConnection]) -> bytes:
    """The answer of GET_PRODUCER_CONNECTION_LIST."""
    return orjson.dumps({"connectionSet": [each.to_json() for each in connections]})


def decode_producers(body: Buffer) -> list[ClientConnection]:
    """The inverse. Raises Refused."""
    content = load_object(body, "ProducerConnection")
    return [ClientConnection.from_json(each) for each in get_objects(content, "connectionSet")]


def encode_subscription(group: str, topic: str, subscription: SubscriptionData | None) -> bytes:
    """The answer of QUERY_SUBSCRIPTION_BY_CONSUMER."""
    content: dict[str, Any] = {"group": group, "topic": topic}
    if subscription is not None:
        content["subscriptionData"] = subscription.to_json()
    return orjson.dumps(content)


def encode_producer_table(groups: Mapping[str, Iterable[ProducerInfo]]) -> bytes:
    """The answer of GET_ALL_PRODUCER_INFO."""
    return orjson.dumps({"data": {group: [each.to_json() for each in groups[group]] for group in groups}})
