"""Typed headers of what administrators and their tools ask."""

from actors.remoting.header import Header, Long


class ConsumeStatsHeader(Header):
    """GET_CONSUME_STATS 208; without topics: all that the group has consumed. `topic_list` is `a;b`."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None

    @property
    def topics(self) -> list[str]:
        """The topics that are asked for."""
        if self.topic_list:
            return [topic for topic in self.topic_list.split(";") if topic]
        return [self.topic] if self.topic else []


class ProducerGroupHeader(Header):
    """GET_PRODUCER_CONNECTION_LIST 204."""

    producer_group: str


class GroupHeader(Header):
    """QUERY_TOPICS_BY_CONSUMER 343, GET_SUBSCRIPTIONGROUP_CONFIG 352."""

    group: str


class GroupTopicHeader(Header):
    """QUERY_CONSUME_TIME_SPAN 303, QUERY_SUBSCRIPTION_BY_CONSUMER 345."""

    group: str
    topic: str


class ResetOffsetHeader(Header):
    """INVOKE_BROKER_TO_RESET_OFFSET 222, RESET_CONSUMER_CLIENT_OFFSET 220.

    A queue from 0 on and an offset from 0 on name one offset; else the offset is that of the time, or with a
    negative time the end.
    """

    topic: str
    group: str
    timestamp: Long = -1
    is_force: bool = True
    queue_id: Long = -1
    offset: Long | None = None


class CloneGroupOffsetHeader(Header):
    """CLONE_GROUP_OFFSET 314; without a topic: all that the group has consumed."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ConsumeQueueHeader(Header):
    """QUERY_CONSUME_QUEUE 321."""

    topic: str
    queue_id: Long
    index: Long
    count: Long
    consumer_group: str | None = None


class ClientHeader(Header):
    """GET_CONSUMER_RUNNING_INFO 307, CONSUME_MESSAGE_DIRECTLY 309: which member is meant."""

    consumer_group: str
    client_id: str = ""
    jstack_enable: bool | None = None
    msg_id: str | None = None


class ConsumerStatusHeader(Header):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS 223, GET_CONSUMER_STATUS_FROM_CLIENT 221; `client_addr` is the id
    of one member, empty for all.
    """

    topic: str
    group: str
    client_addr: str = ""


class BrokerStatsHeader(Header):
    """VIEW_BROKER_STATS_DATA 315: a table and a key in it, as `TOPIC_PUT_NUMS` and a topic."""

    stats_name: str
    stats_key: str


class BrokerConsumeStatsHeader(Header):
    """GET_BROKER_CONSUME_STATS 317."""

    is_order: bool = False


class MasterFlushOffsetHeader(Header):
    """RESET_MASTER_FLUSH_OFFSET 908."""

    master_flush_offset: Long


class DeleteGroupHeader(Header):
    """DELETE_SUBSCRIPTIONGROUP 207."""

    group_name: str
    clean_offset: bool = False
