"""Typed headers: what a request's or an answer's fields mean. Those of the hot path are written out by
hand.
"""

from actors.remoting.header import Header, Long, wire
from actors.remoting.hot_headers import PullMessageHeader, SendMessageHeader, SendMessageHeaderV1

__all__ = ["PullMessageHeader", "SendMessageHeader", "SendMessageHeaderV1"]

# ---- nameserver ----------------------------------------------------------------------------------


class GetRouteInfoHeader(Header):
    """GET_ROUTEINFO_BY_TOPIC 105."""

    topic: str
    accept_standard_json_only: bool | None = None


class RegisterBrokerHeader(Header):
    """REGISTER_BROKER 103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long
    ha_server_addr: str = ""
    compressed: bool = False
    body_crc32: Long = wire(name="bodyCrc32", default=0)
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None


class RegisterBrokerResponse(Header):
    """What a broker learns by registering: where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBrokerHeader(Header):
    """UNREGISTER_BROKER 104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


class QueryDataVersionHeader(Header):
    """QUERY_DATA_VERSION 322: has the nameserver this version of the broker's topics?"""

    broker_addr: str
    broker_name: str = ""
    cluster_name: str = ""
    broker_id: Long = 0


class BrokerHeartbeatHeader(Header):
    """BROKER_HEARTBEAT 904."""

    broker_addr: str
    broker_name: str = ""
    cluster_name: str = ""
    broker_id: Long | None = None


class BrokerNameHeader(Header):
    """WIPE_WRITE_PERM_OF_BROKER 205, ADD_WRITE_PERM_OF_BROKER 327."""

    broker_name: str


class KVConfigHeader(Header):
    """PUT_KV_CONFIG 100."""

    namespace: str
    key: str
    value: str


class KVKeyHeader(Header):
    """GET_KV_CONFIG 101, DELETE_KV_CONFIG 102."""

    namespace: str
    key: str


class NamespaceHeader(Header):
    """GET_KVLIST_BY_NAMESPACE 219."""

    namespace: str


class ClusterHeader(Header):
    """GET_TOPICS_BY_CLUSTER 224."""

    cluster: str


class DeleteTopicHeader(Header):
    """DELETE_TOPIC_IN_NAMESRV 216, DELETE_TOPIC_IN_BROKER 215."""

    topic: str
    cluster_name: str | None = None


# ---- broker: offsets, groups, topics -------------------------------------------------------------


class QueryConsumerOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET 14."""

    consumer_group: str
    topic: str
    queue_id: Long
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET 15."""

    consumer_group: str
    topic: str
    queue_id: Long
    commit_offset: Long


class TopicQueueHeader(Header):
    """GET_MAX_OFFSET 30, GET_MIN_OFFSET 31, GET_EARLIEST_MSG_STORETIME 32."""

    topic: str
    queue_id: Long
    committed: bool | None = None


class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP 29; the boundary is LOWER or UPPER."""

    topic: str
    queue_id: Long
    timestamp: Long
    boundary_type: str = "LOWER"


class OffsetResponse(Header):
    """The answer of 14, 29, 30 and 31."""

    offset: Long


class TimestampResponse(Header):
    """The answer of 32."""

    timestamp: Long


class ConsumerGroupHeader(Header):
    """GET_CONSUMER_LIST_BY_GROUP 38, NOTIFY_CONSUMER_IDS_CHANGED 40, GROUP_MEMBERS 7204, GROUP_CHANGED
    7205.
    """

    consumer_group: str


class UnregisterClientHeader(Header):
    """UNREGISTER_CLIENT 35."""

    client_id: str = wire(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class CreateTopicHeader(Header):
    """UPDATE_AND_CREATE_TOPIC 17."""

    topic: str
    read_queue_nums: Long
    write_queue_nums: Long
    perm: Long
    default_topic: str = "TBW102"
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Long = 0
    order: bool = False
    attributes: str | None = None


class TopicHeader(Header):
    """Requests about one topic."""

    topic: str


class ViewMessageHeader(Header):
    """VIEW_MESSAGE_BY_ID 33: a physical offset."""

    offset: Long
    topic: str | None = None


class QueryMessageHeader(Header):
    """QUERY_MESSAGE 12; the times are in milliseconds."""

    topic: str
    key: str
    max_num: Long
    begin_timestamp: Long
    end_timestamp: Long
    is_unique_key: bool = wire(name="_UNIQUE_KEY_QUERY", default=False)


class QueryMessageResponse(Header):
    """The answer of 12."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


class ConsumerSendMsgBackHeader(Header):
    """CONSUMER_SEND_MSG_BACK 36; the offset is physical."""

    offset: Long
    group: str
    delay_level: Long
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Long | None = None


# ---- our own requests ----------------------------------------------------------------------------


class SendRecordsHeader(Header):
    """SEND_RECORDS 7101: the body is `count` records built by the client, back to back, of one topic and
    queue.
    """

    topic: str
    queue_id: Long
    count: Long
    producer_group: str | None = None
    default_topic: str = "TBW102"
    default_topic_queue_nums: Long = 4


class SendRecordsResponse(Header):
    """Where the first of them stands; the others follow."""

    queue_id: Long
    queue_offset: Long
    physical_offset: Long
    count: Long
    store_timestamp: Long


class AppendBatchHeader(Header):
    """APPEND_BATCH 7107: the body is messages in RocketMQ's batch encoding; queue -1: the broker chooses."""

    topic: str
    queue_id: Long = -1


class AppendBatchResponse(Header):
    """Where the first message stands; the body is the offset message ids of all, comma-separated."""

    queue_id: Long
    queue_offset: Long
    count: Long
    store_timestamp: Long


class SendRunsHeader(Header):
    """SEND_RUNS 7106: the body is records built by the client, of several queues of one topic
    (store.message.runs).
    """

    topic: str
    producer_group: str | None = None
    default_topic: str = "TBW102"
    default_topic_queue_nums: Long = 4


class SendRunsResponse(Header):
    """Where the first of all these records stands; the body has the first queue offset of each run."""

    physical_offset: Long
    count: Long
    store_timestamp: Long


class PullRecordsHeader(Header):
    """PULL_RECORDS 7102: up to `max_bytes` of records; held for up to `wait_ms` where there are none."""

    topic: str
    queue_id: Long
    queue_offset: Long
    consumer_group: str = ""
    max_messages: Long = 1 << 20
    max_bytes: Long = 4 * 1024 * 1024
    wait_ms: Long = 0
    subscription: str = "*"
    expression_type: str = "TAG"
    commit_offset: Long | None = None


class PullRecordsResponse(Header):
    """The answer; the body is records, back to back."""

    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    count: Long


class ForwardHeartbeatHeader(Header):
    """FORWARD_HEARTBEAT 7201: through which broker a client's heartbeat came, and what the client is
    written in.
    """

    broker_name: str
    language: str = "OTHER"
    version: Long = 0


class ForwardUnregisterHeader(Header):
    """FORWARD_UNREGISTER 7203; `connection_closed`: the client has not said so, its connection has ended."""

    broker_name: str
    client_id: str
    consumer_group: str
    connection_closed: bool = False
