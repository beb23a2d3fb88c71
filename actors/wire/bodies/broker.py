"""Bodies with statistics of a broker and with units of its consume queues.

Class and field names are RocketMQ's (`org.apache.rocketmq.remoting.protocol.body` and `.admin`).
"""

from actors.wire.bodies.body import Body, ShapedBody, wire
from actors.wire.bodies.groups import SubscriptionData
from actors.wire.header import AnyListOf, Long, Text


class BrokerStatsItem(Body):
    """One statistic over a time window: the sum, the rate per second and the average per request."""

    sum: Long = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    """Response body of VIEW_BROKER_STATS_DATA."""

    minute: BrokerStatsItem = wire(name="statsMinute", default_factory=BrokerStatsItem)
    hour: BrokerStatsItem = wire(name="statsHour", default_factory=BrokerStatsItem)
    day: BrokerStatsItem = wire(name="statsDay", default_factory=BrokerStatsItem)


class ConsumeQueueData(Body):
    """One unit of a consume queue; `eval` is True if the requested group's filter matches it."""

    physic_offset: Long = 0
    physic_size: Long = 0
    tags_code: Long = 0
    eval: bool = False


class ConsumeQueueUnits(ShapedBody):
    """Response body of QUERY_CONSUME_QUEUE: units of the queue and its minimum and maximum offset.

    `filter_data` has a note if the requested group is not online.
    """

    title = "QueryConsumeQueueResponseBody"

    min_offset: Long = wire(name="minQueueIndex", default=0)
    max_offset: Long = wire(name="maxQueueIndex", default=0)
    units: AnyListOf[ConsumeQueueData] = wire(name="queueData", default_factory=list)
    subscription: SubscriptionData | None = wire(name="subscriptionData", default=None)
    filter_data: Text | None = None
