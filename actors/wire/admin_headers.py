"""Typed headers of the requests of administration tools such as mqadmin."""

from actors.wire.header import ClientId, Count, Group, Header, Id, IdOrNone, Int, Long, Name, Text, Topic


class ConsumeStatsHeader(Header):
    """Header of GET_CONSUME_STATS (208).

    Without topics the request covers all topics that the group consumes. `topic_list` separates topics by
    semicolons.
    """

    consumer_group: Group
    topic: Topic | None = None
    topic_list: Text | None = None

    @property
    def topics(self) -> list[str]:
        """The requested topics; empty for all."""
        if self.topic_list:
            return [topic for topic in self.topic_list.split(";") if topic]
        return [self.topic] if self.topic else []


class ProducerGroupHeader(Header):
    """Header of GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: Group


class GroupHeader(Header):
    """Header of QUERY_TOPICS_BY_CONSUMER (343) and GET_SUBSCRIPTIONGROUP_CONFIG (352)."""

    group: Group


class GroupTopicHeader(Header):
    """Header of QUERY_CONSUME_TIME_SPAN (303) and QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    group: Group
    topic: Topic


class ResetOffsetHeader(Header):
    """Header of INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220).

    Resets one queue, or all queues of the topic if `queue_id` is negative. The new offset is `offset` if one
    queue and an offset other than -1 are given, else the offset at `timestamp` (milliseconds), or the end of
    the queue if `timestamp` is negative.
    """

    topic: Topic
    group: Group
    timestamp: Long = -1
    is_force: bool = True
    queue_id: Int = -1
    offset: Long | None = None


class CloneGroupOffsetHeader(Header):
    """Header of CLONE_GROUP_OFFSET (314).

    Without a topic the offsets of all topics of the source group are copied.
    """

    src_group: Group
    dest_group: Group
    topic: Topic | None = None
    offline: bool = False


class ConsumeQueueHeader(Header):
    """Header of QUERY_CONSUME_QUEUE (321): `count` units of a consume queue from offset `index` on."""

    topic: Topic
    queue_id: Int
    index: Long
    count: Long
    consumer_group: Group | None = None


class ClientHeader(Header):
    """Header of GET_CONSUMER_RUNNING_INFO (307) and CONSUME_MESSAGE_DIRECTLY (309).

    The request is forwarded to the member `client_id` of the group.
    """

    consumer_group: Group
    client_id: ClientId = ""
    jstack_enable: bool | None = None
    msg_id: Text | None = None


class ConsumerStatusHeader(Header):
    """Header of INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221).

    `client_addr` is the client id of one member; empty for all members.
    """

    topic: Topic
    group: Group
    client_addr: ClientId = ""


class BrokerStatsHeader(Header):
    """Header of VIEW_BROKER_STATS_DATA (315).

    `stats_name` is a statistic such as `TOPIC_PUT_NUMS`, `stats_key` its key, such as a topic.
    """

    stats_name: Name
    stats_key: Text


class BrokerConsumeStatsHeader(Header):
    """Header of GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


class MasterFlushOffsetHeader(Header):
    """Header of RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Long


class ReplaceQueueFileHeader(Header):
    """Header of REPLACE_QUEUE_FILE (7109).

    `offset` is the queue offset at which the file begins, `crc` the CRC-32 of the new file.
    """

    topic: Topic
    queue_id: Id
    offset: Count
    crc: Count


class RestartBrokerHeader(Header):
    """Header of RESTART_BROKER (7110); `dry_run`: only check that the broker can be restarted."""

    dry_run: bool = False


class DrainBrokerHeader(Header):
    """Header of DRAIN_BROKER (7111). `step`: "look" (only report the progress), "start" or "cancel"."""

    step: Name = "look"


class ChangeRaftMembersHeader(Header):
    """Header of CHANGE_RAFT_MEMBERS (7213): the member to add, the one to remove, or both to replace one.

    An empty store id means none. `add_address` is the address of the broker to add.
    """

    add_replica: IdOrNone = -1
    add_store_id: Name = ""
    add_address: Name = ""
    remove_replica: IdOrNone = -1
    remove_store_id: Name = ""


class DeleteGroupHeader(Header):
    """Header of DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: Group
    clean_offset: bool = False


class UserHeader(Header):
    """Header of AUTH_CREATE_USER, AUTH_UPDATE_USER, AUTH_DELETE_USER and AUTH_GET_USER (3001 to 3004)."""

    username: Name = ""


class ListUsersHeader(Header):
    """Header of AUTH_LIST_USER (3005); returns the users whose names contain `filter`."""

    filter: Name = ""


class AclHeader(Header):
    """Header of AUTH_CREATE_ACL, AUTH_UPDATE_ACL and AUTH_GET_ACL (3006, 3007, 3009)."""

    subject: Text = ""


class DeleteAclHeader(Header):
    """Header of AUTH_DELETE_ACL (3008); without a resource all policies of the subject are deleted."""

    subject: Text = ""
    policy_type: Name | None = None
    resource: Text | None = None


class ListAclsHeader(Header):
    """Header of AUTH_LIST_ACL (3010); the filters are substrings."""

    subject_filter: Text = ""
    resource_filter: Text = ""
