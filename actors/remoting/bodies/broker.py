"""Bodies about the broker itself: what it has put and got, and what one of its queues holds.

Names and fields are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body` and `.admin`).
"""

from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from actors.remoting.bodies.flat import Flat
from actors.remoting.bodies.groups import SubscriptionData
from actors.remoting.command import Buffer
from actors.remoting.json_fields import get_int, get_object, get_objects, get_str, load_object


@dataclass(slots=True)
class BrokerStatsItem(Flat):
    """How much within a window: the sum, by the second, and by the request."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(slots=True)
class BrokerStatsData:
    """The answer of VIEW_BROKER_STATS_DATA."""

    minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    day: BrokerStatsItem = field(default_factory=BrokerStatsItem)

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        content = load_object(body, "BrokerStatsData")
        names = ("statsMinute", "statsHour", "statsDay")
        return cls(*(BrokerStatsItem.from_json(get_object(content, name)) for name in names))

    def encode(self) -> bytes:
        """The body."""
        return orjson.dumps(
            {
                "statsDay": self.day.to_json(),
                "statsHour": self.hour.to_json(),
                "statsMinute": self.minute.to_json(),
            }
        )


@dataclass(slots=True)
class ConsumeQueueData(Flat):
    """One unit of a consume queue; `eval`: whether the filter of the group that was named takes it."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    eval: bool = False


@dataclass(slots=True)
class ConsumeQueueUnits:
    """The answer of QUERY_CONSUME_QUEUE: units, and where the queue begins and ends; `filter_data` says where
    a group that was named is not online.
    """

    min_offset: int
    max_offset: int
    units: list[ConsumeQueueData] = field(default_factory=list)
    subscription: SubscriptionData | None = None
    filter_data: str = ""

    @classmethod
    def decode(cls, body: Buffer) -> Self:
        """Raises Refused where the body is none."""
        content = load_object(body, "QueryConsumeQueueResponseBody")
        subscription = content.get("subscriptionData")
        return cls(
            get_int(content, "minQueueIndex"),
            get_int(content, "maxQueueIndex"),
            [ConsumeQueueData.from_json(unit) for unit in get_objects(content, "queueData")],
            SubscriptionData.from_json(subscription) if isinstance(subscription, dict) else None,
            get_str(content, "filterData"),
        )

    def encode(self) -> bytes:
        """The body."""
        content: dict[str, Any] = {
            "maxQueueIndex": self.max_offset,
            "minQueueIndex": self.min_offset,
            "queueData": [unit.to_json() for unit in self.units],
        }
        if self.subscription is not None:
            content["subscriptionData"] = self.subscription.to_json()
        if self.filter_data:
            content["filterData"] = self.filter_data
        return orjson.dumps(content)
