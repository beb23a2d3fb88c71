"""Bodies about the broker itself: what it has put and got, and what one of its queues holds.

Names and fields are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body` and `.admin`).
"""

from actors.remoting.bodies.body import Body, ShapedBody, wire
from actors.remoting.bodies.groups import SubscriptionData
from actors.remoting.header import Long


class BrokerStatsItem(Body):
    """How much within a window: the sum, by the second, and by the request."""

    sum: Long = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    """The response of VIEW_BROKER_STATS_DATA."""

    minute: BrokerStatsItem = wire(name="statsMinute", default_factory=BrokerStatsItem)
    hour: BrokerStatsItem = wire(name="statsHour", default_factory=BrokerStatsItem)
    day: BrokerStatsItem = wire(name="statsDay", default_factory=BrokerStatsItem)


class ConsumeQueueData(Body):
    """One unit of a consume queue; `eval`: whether the filter of the group that was named takes it."""

    physic_offset: Long = 0
    physic_size: Long = 0
    tags_code: Long = 0
    eval: bool = False


class ConsumeQueueUnits(ShapedBody):
    """The response of QUERY_CONSUME_QUEUE: units, and the offsets at which the queue begins and ends;
    `filter_data` says where a group that was named is not online.
    """

    title = "QueryConsumeQueueResponseBody"

    min_offset: Long = wire(name="minQueueIndex", default=0)
    max_offset: Long = wire(name="maxQueueIndex", default=0)
    units: list[ConsumeQueueData] = wire(name="queueData", default_factory=list)
    subscription: SubscriptionData | None = wire(name="subscriptionData", default=None)
    filter_data: str | None = None
