"""Typed headers of requests and responses; `hot_headers` has those of sends and pulls."""

from actors.wire.header import (
    ClientId,
    Count,
    FrameText,
    Group,
    Header,
    Id,
    IdOrNone,
    Int,
    Long,
    Name,
    Text,
    Topic,
    wire,
)
from actors.wire.hot_headers import PullMessageHeader, SendMessageHeader, SendMessageHeaderV1

__all__ = ["PullMessageHeader", "SendMessageHeader", "SendMessageHeaderV1"]

# ---- nameserver ----------------------------------------------------------------------------------


class GetRouteInfoHeader(Header):
    """Header of GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: Topic
    accept_standard_json_only: bool | None = None


class RegisterBrokerHeader(Header):
    """Header of REGISTER_BROKER (103).

    `partial` is RayMQ's: the body has not all topics of the broker.
    """

    broker_name: Name
    broker_addr: Name
    cluster_name: Name
    broker_id: Long
    ha_server_addr: Name = ""
    compressed: bool = False
    body_crc32: Long = wire(name="bodyCrc32", default=0)
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    partial: bool | None = None


class RegisterBrokerResponse(Header):
    """Response header of REGISTER_BROKER: the addresses of the broker's master."""

    ha_server_addr: Name | None = None
    master_addr: Name | None = None


class UnregisterBrokerHeader(Header):
    """Header of UNREGISTER_BROKER (104)."""

    broker_name: Name
    broker_addr: Name
    cluster_name: Name
    broker_id: Long


class QueryDataVersionHeader(Header):
    """Header of QUERY_DATA_VERSION (322); the body is the version of the broker's topics to compare with."""

    broker_addr: Name
    broker_name: Name = ""
    cluster_name: Name = ""
    broker_id: Long = 0


class BrokerHeartbeatHeader(Header):
    """Header of BROKER_HEARTBEAT (904)."""

    broker_addr: Name
    broker_name: Name = ""
    cluster_name: Name = ""
    broker_id: Long | None = None


class BrokerNameHeader(Header):
    """Header of WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: Name


class KVConfigHeader(Header):
    """Header of PUT_KV_CONFIG (100)."""

    namespace: Name
    key: Name
    value: Text


class KVKeyHeader(Header):
    """Header of GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102)."""

    namespace: Name
    key: Name


class NamespaceHeader(Header):
    """Header of GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: Name


class ClusterHeader(Header):
    """Header of GET_TOPICS_BY_CLUSTER (224)."""

    cluster: Name


class DeleteTopicHeader(Header):
    """Header of DELETE_TOPIC_IN_NAMESRV (216) and DELETE_TOPIC_IN_BROKER (215)."""

    topic: Topic
    cluster_name: Name | None = None


# ---- broker: offsets, groups, topics -------------------------------------------------------------


class QueryConsumerOffsetHeader(Header):
    """Header of QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: Group
    topic: Topic
    queue_id: Int
    set_zero_if_not_found: bool | None = None
    generation: Long | None = None


class UpdateConsumerOffsetHeader(Header):
    """Header of UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: Group
    topic: Topic
    queue_id: Int
    commit_offset: Long


class TopicQueueHeader(Header):
    """Header of GET_MAX_OFFSET (30), GET_MIN_OFFSET (31) and GET_EARLIEST_MSG_STORETIME (32)."""

    topic: Topic
    queue_id: Int
    committed: bool | None = None


class SearchOffsetHeader(Header):
    """Header of SEARCH_OFFSET_BY_TIMESTAMP (29); `boundary_type` is LOWER or UPPER."""

    topic: Topic
    queue_id: Int
    timestamp: Long
    boundary_type: Name = "LOWER"


class OffsetResponse(Header):
    """Response header of requests for one queue offset.

    These are QUERY_CONSUMER_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, GET_MAX_OFFSET and GET_MIN_OFFSET.
    """

    offset: Long


class TimestampResponse(Header):
    """Response header of GET_EARLIEST_MSG_STORETIME; the timestamp is in milliseconds."""

    timestamp: Long


class ConsumerGroupHeader(Header):
    """Header of requests that name a consumer group.

    These are GET_CONSUMER_LIST_BY_GROUP (38), NOTIFY_CONSUMER_IDS_CHANGED (40), GROUP_MEMBERS (7204) and
    GROUP_CHANGED (7205).
    """

    consumer_group: Group


class UnregisterClientHeader(Header):
    """Header of UNREGISTER_CLIENT (35)."""

    client_id: ClientId = wire(name="clientID")
    producer_group: Group | None = None
    consumer_group: Group | None = None


class CreateTopicHeader(Header):
    """Header of UPDATE_AND_CREATE_TOPIC (17)."""

    topic: Topic
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int
    default_topic: Topic = "TBW102"
    topic_filter_type: Name = "SINGLE_TAG"
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: Text | None = None


class TopicHeader(Header):
    """Header of requests that name only a topic."""

    topic: Topic


class ViewMessageHeader(Header):
    """Header of VIEW_MESSAGE_BY_ID (33); `offset` is a CommitLog offset."""

    offset: Long
    topic: Topic | None = None


class QueryMessageHeader(Header):
    """Header of QUERY_MESSAGE (12); timestamps are in milliseconds."""

    topic: Topic
    key: Text
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    is_unique_key: bool = wire(name="_UNIQUE_KEY_QUERY", default=False)


class QueryMessageResponse(Header):
    """Response header of QUERY_MESSAGE."""

    index_last_update_timestamp: Long
    index_last_update_phyoffset: Long


class ConsumerSendMsgBackHeader(Header):
    """Header of CONSUMER_SEND_MSG_BACK (36); `offset` is the CommitLog offset of the message."""

    offset: Long
    group: Group
    delay_level: Int
    origin_msg_id: Text | None = None
    origin_topic: Topic | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


# ---- RayMQ's requests ----------------------------------------------------------------------------


class AppendBatchHeader(Header):
    """Header of APPEND_BATCH (7107); the body is messages in RocketMQ's batch encoding.

    With `queue_id` -1 the broker chooses the queue.
    """

    topic: Topic
    queue_id: IdOrNone = -1


class AppendBatchResponse(Header):
    """Response header of APPEND_BATCH: the position of the first message.

    The body is the offset message ids of all messages, comma-separated.
    """

    queue_id: Int
    queue_offset: Long
    count: Long
    store_timestamp: Long


class SendRunsHeader(Header):
    """Header of SEND_RUNS (7106).

    The body is records of several queues of one topic, encoded by the client (store.message.runs).
    """

    topic: Topic
    producer_group: Group | None = None
    default_topic: Topic = "TBW102"
    default_topic_queue_nums: Id = 4


class SendRunsResponse(Header):
    """Response header of SEND_RUNS: the CommitLog offset of the first record.

    The body is the first queue offset of each run.
    """

    physical_offset: Long
    count: Long
    store_timestamp: Long


class PullRecordsHeader(Header):
    """Header of PULL_RECORDS (7102): request up to `max_bytes` of records of one queue.

    If the queue has no records at `queue_offset`, the broker holds the request for up to `wait_ms`. `history`
    is the id of the epoch of the log that the last response with one named; empty before the first one. The
    broker responds with its own if it differs: with PULL_OFFSET_MOVED if `queue_offset` is not in its log.
    An id with `GROUP_EPOCH` is known to all replicas; another one than that of the last response gets it with
    `FROM_OTHER` added.
    """

    topic: Topic
    queue_id: Id
    queue_offset: Long
    consumer_group: Group = ""
    max_messages: Count = 1 << 20
    max_bytes: Count = 4 * 1024 * 1024
    wait_ms: Count = 0
    subscription: FrameText = "*"
    expression_type: Name = "TAG"
    commit_offset: Count | None = None
    history: Name | None = None


class PullRecordsResponse(Header):
    """Response header of PULL_RECORDS; the body is concatenated records."""

    next_begin_offset: Long
    min_offset: Long
    max_offset: Long
    count: Long
    suggest_which_broker_id: Long = 0
    history: Name | None = None


class ForwardHeartbeatHeader(Header):
    """Header of FORWARD_HEARTBEAT (7201).

    `broker_name` is the broker that received the heartbeat; language and version are the client's.
    """

    broker_name: Name
    language: Name = "OTHER"
    version: Long = 0


class ForwardUnregisterHeader(Header):
    """Header of FORWARD_UNREGISTER (7203).

    `connection_closed` is true if the client has not unregistered but its connection to the broker was
    closed.
    """

    broker_name: Name
    client_id: ClientId
    consumer_group: Group
    connection_closed: bool = False


class FindRequestHeader(Header):
    """Header of FIND_REQUEST (7206); `user` is empty for a super user."""

    correlation_id: Name
    client_id: ClientId
    user: Name = ""


class RaftMessageHeader(Header):
    """Header of RAFT_MESSAGE (7210): the group, the member that the message is for, and facts of the sender.

    `group_id` is the id of the sender's group, empty if it does not know it.
    """

    raft_group: Name
    to_replica: Id
    to_store_id: Name
    sender_address: Name = ""
    group_id: Name = ""


class TransferLeadershipHeader(Header):
    """Header of TRANSFER_LEADERSHIP (7215)."""

    to_replica: Id
    dry_run: bool = False


# ---- transactions --------------------------------------------------------------------------------


class EndTransactionHeader(Header):
    """Header of END_TRANSACTION (37); `commit_or_rollback` has the transaction bits of a sysFlag.

    The two offsets are those of the half message: `tran_state_table_offset` in its queue, `commit_log_offset`
    in the CommitLog. Clients before 5.0 do not send the topic.
    """

    producer_group: Group
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: Text = ""
    transaction_id: Text = ""
    topic: Topic = ""


class RecallMessageHeader(Header):
    """Header of RECALL_MESSAGE (370); the handle is in the response to the send of the message."""

    topic: Topic
    recall_handle: FrameText
    producer_group: Group = ""


class CheckTransactionStateHeader(Header):
    """Header of CHECK_TRANSACTION_STATE (39), which a broker sends to a producer.

    The body is the record of the half message, with its own topic and queue. `msg_id` is its UNIQ_KEY.
    """

    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: Text = ""
    transaction_id: Text = ""
    offset_msg_id: Text = ""
    topic: Topic = ""
    broker_name: Name = wire(name="bname", default="")
