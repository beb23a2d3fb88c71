"""The broker's request table: every code it answers, and what each is about."""

from __future__ import annotations

from actors.broker.admin.broker_info import BrokerInfo
from actors.broker.admin.cleaning import Cleaning
from actors.broker.admin.client_admin import ClientAdmin
from actors.broker.admin.replica_requests import ReplicaRequests
from actors.broker.admin.topic_admin import AdminRequests
from actors.broker.broker_settings import BrokerSettings
from actors.broker.group.client_requests import ClientRequests
from actors.broker.group.request_modes import RequestModes
from actors.broker.handlers import Handlers
from actors.host.settings_requests import SettingsRequests
from actors.remoting import admin_headers, headers, hot_headers
from actors.remoting.codes import RayMQRequestCode, RequestCode
from actors.remoting.request import Action, Cost, Handler, HeaderType, Resource
from actors.remoting.table import RequestTable

Row = tuple[int, Handler, HeaderType | None, Resource, Action, Cost]


def request_table(handlers: Handlers) -> RequestTable:
    """What clients, tools and rebalancers may ask of a broker."""
    table = RequestTable()
    rows = (
        *_sending(handlers),
        *_reading(handlers),
        *_groups(handlers),
        *_admin(handlers.admin),
        *_cleaning(handlers.cleaning),
        *_progress(handlers),
        *_members(handlers.client_admin),
        *_about(handlers.info),
        *_modes(handlers.modes),
        *_replicas(handlers.replicas),
        *_config(handlers.config),
    )
    for code, handler, header_type, resource, action, cost in rows:
        table.add(code, handler, header_type, resource=resource, action=action, cost=cost)
    add_group_changed(table, handlers.clients)
    handlers.info.requests = table
    return table


def add_group_changed(table: RequestTable, clients: ClientRequests) -> None:
    """What a rebalancer may say, also over the connection that the broker has opened to it."""
    table.add(
        RayMQRequestCode.GROUP_CHANGED, clients.group_changed, headers.ConsumerGroupHeader, cost=Cost.CLIENT
    )


def _sending(handlers: Handlers) -> tuple[Row, ...]:
    code, topic, pub, cost = RequestCode, Resource.TOPIC, Action.PUB, Cost.SEND
    sender = handlers.sender
    short, long = hot_headers.SendMessageHeader, hot_headers.SendMessageHeaderV1
    back = headers.ConsumerSendMsgBackHeader
    return (
        (code.SEND_MESSAGE, sender.send, long, topic, pub, cost),
        (code.SEND_MESSAGE_V2, sender.send, short, topic, pub, cost),
        (code.SEND_BATCH_MESSAGE, sender.send_batch, short, topic, pub, cost),
        (code.SEND_REPLY_MESSAGE, handlers.replies.send, long, topic, pub, cost),
        (code.SEND_REPLY_MESSAGE_V2, handlers.replies.send, short, topic, pub, cost),
        (RayMQRequestCode.SEND_RECORDS, sender.send_records, headers.SendRecordsHeader, topic, pub, cost),
        (RayMQRequestCode.SEND_RUNS, sender.send_runs, headers.SendRunsHeader, topic, pub, cost),
        (RayMQRequestCode.APPEND_BATCH, sender.append_batch, headers.AppendBatchHeader, topic, pub, cost),
        (code.CONSUMER_SEND_MSG_BACK, handlers.send_back.send_back, back, Resource.GROUP, Action.SUB, cost),
    )


def _reading(handlers: Handlers) -> tuple[Row, ...]:
    code, topic, sub, get, query = RequestCode, Resource.TOPIC, Action.SUB, Action.GET, Cost.QUERY
    puller, queues = handlers.puller, handlers.queues
    pull, queue = hot_headers.PullMessageHeader, headers.TopicQueueHeader
    return (
        (code.PULL_MESSAGE, puller.pull, pull, topic, sub, Cost.PULL),
        (code.LITE_PULL_MESSAGE, puller.pull, pull, topic, sub, Cost.PULL),
        (
            RayMQRequestCode.PULL_RECORDS,
            puller.pull_records,
            headers.PullRecordsHeader,
            topic,
            sub,
            Cost.PULL,
        ),
        (code.GET_MAX_OFFSET, queues.max_offset, queue, topic, get, query),
        (code.GET_MIN_OFFSET, queues.min_offset, queue, topic, get, query),
        (
            code.SEARCH_OFFSET_BY_TIMESTAMP,
            queues.search_offset,
            headers.SearchOffsetHeader,
            topic,
            get,
            query,
        ),
        (code.GET_EARLIEST_MSG_STORETIME, queues.earliest_store_time, queue, topic, get, query),
        (code.VIEW_MESSAGE_BY_ID, queues.view_message, headers.ViewMessageHeader, topic, get, query),
        (code.QUERY_MESSAGE, queues.query_message, headers.QueryMessageHeader, topic, get, query),
        (RayMQRequestCode.DESCRIBE_SPLITS, queues.describe_splits, headers.TopicHeader, topic, get, query),
    )


def _groups(handlers: Handlers) -> tuple[Row, ...]:
    code, group, sub, client = RequestCode, Resource.GROUP, Action.SUB, Cost.CLIENT
    offsets, clients = handlers.offsets, handlers.clients
    query, update = headers.QueryConsumerOffsetHeader, headers.UpdateConsumerOffsetHeader
    none = Resource.NONE
    return (
        (code.QUERY_CONSUMER_OFFSET, offsets.query, query, group, sub, client),
        (code.UPDATE_CONSUMER_OFFSET, offsets.update, update, group, sub, client),
        (RayMQRequestCode.COMMIT_OFFSETS, offsets.commit_all, None, group, sub, client),
        (RayMQRequestCode.SYNC_GROUP, clients.sync_group, None, group, sub, client),
        (code.GET_CONSUMER_LIST_BY_GROUP, clients.members, headers.ConsumerGroupHeader, group, sub, client),
        (code.QUERY_ASSIGNMENT, handlers.assignments.query, None, group, sub, client),
        (code.LOCK_BATCH_MQ, handlers.locks.lock_batch, None, group, sub, client),
        (code.UNLOCK_BATCH_MQ, handlers.locks.unlock_batch, None, group, sub, client),
        (code.CHECK_CLIENT_CONFIG, clients.check, None, none, Action.NONE, client),
        (code.HEART_BEAT, clients.heartbeat, None, none, Action.NONE, Cost.HEARTBEAT),
        (
            code.UNREGISTER_CLIENT,
            clients.unregister,
            headers.UnregisterClientHeader,
            none,
            Action.NONE,
            client,
        ),
    )


def _admin(admin: AdminRequests) -> tuple[Row, ...]:
    code, topic, group, cost = RequestCode, Resource.TOPIC, Resource.GROUP, Cost.ADMIN
    create, delete = headers.CreateTopicHeader, headers.DeleteTopicHeader
    delete_group, one_group = admin_headers.DeleteGroupHeader, admin_headers.GroupHeader
    return (
        (code.UPDATE_AND_CREATE_TOPIC, admin.update_topic, create, topic, Action.UPDATE, cost),
        (code.UPDATE_AND_CREATE_TOPIC_LIST, admin.update_topics, None, topic, Action.UPDATE, cost),
        (code.DELETE_TOPIC_IN_BROKER, admin.delete_topic, delete, topic, Action.DELETE, cost),
        (code.GET_TOPIC_CONFIG, admin.topic_config, headers.TopicHeader, topic, Action.GET, cost),
        (code.GET_ALL_TOPIC_CONFIG, admin.all_topics, None, topic, Action.LIST, cost),
        (code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, admin.update_group, None, group, Action.UPDATE, cost),
        (
            code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            admin.update_groups,
            None,
            group,
            Action.UPDATE,
            cost,
        ),
        (code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, admin.system_topics, None, topic, Action.LIST, cost),
        (code.DELETE_SUBSCRIPTIONGROUP, admin.delete_group, delete_group, group, Action.DELETE, cost),
        (code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, admin.all_groups, None, group, Action.LIST, cost),
        (code.GET_SUBSCRIPTIONGROUP_CONFIG, admin.group_config, one_group, group, Action.GET, cost),
    )


def _progress(handlers: Handlers) -> tuple[Row, ...]:
    code, topic, group, cost = RequestCode, Resource.TOPIC, Resource.GROUP, Cost.ADMIN
    progress, offsets = handlers.progress, handlers.offset_admin
    stats, span = admin_headers.ConsumeStatsHeader, admin_headers.GroupTopicHeader
    every, one = admin_headers.BrokerConsumeStatsHeader, admin_headers.GroupHeader
    reset, clone = admin_headers.ResetOffsetHeader, admin_headers.CloneGroupOffsetHeader
    by_topic = headers.TopicHeader
    return (
        (code.GET_TOPIC_STATS_INFO, progress.topic_stats, by_topic, topic, Action.GET, cost),
        (code.GET_CONSUME_STATS, progress.consume_stats, stats, group, Action.GET, cost),
        (code.GET_BROKER_CONSUME_STATS, progress.broker_consume_stats, every, group, Action.LIST, cost),
        (code.QUERY_CONSUME_TIME_SPAN, progress.time_span, span, group, Action.GET, cost),
        (code.QUERY_TOPIC_CONSUME_BY_WHO, progress.groups_of_topic, by_topic, topic, Action.GET, cost),
        (code.QUERY_TOPICS_BY_CONSUMER, progress.topics_of_group, one, group, Action.GET, cost),
        (code.INVOKE_BROKER_TO_RESET_OFFSET, offsets.reset, reset, group, Action.UPDATE, cost),
        (code.CLONE_GROUP_OFFSET, offsets.clone, clone, group, Action.UPDATE, cost),
    )


def _members(admin: ClientAdmin) -> tuple[Row, ...]:
    code, group, cost = RequestCode, Resource.GROUP, Cost.ADMIN
    consumers, producers = headers.ConsumerGroupHeader, admin_headers.ProducerGroupHeader
    member, subscription = admin_headers.ClientHeader, admin_headers.GroupTopicHeader
    return (
        (code.GET_CONSUMER_CONNECTION_LIST, admin.consumers, consumers, group, Action.GET, cost),
        (code.GET_PRODUCER_CONNECTION_LIST, admin.producers, producers, group, Action.GET, cost),
        (code.GET_ALL_PRODUCER_INFO, admin.all_producers, None, group, Action.LIST, cost),
        (code.QUERY_SUBSCRIPTION_BY_CONSUMER, admin.subscription, subscription, group, Action.GET, cost),
        (code.GET_CONSUMER_RUNNING_INFO, admin.running_info, member, group, Action.GET, cost),
        (code.CONSUME_MESSAGE_DIRECTLY, admin.consume_directly, member, group, Action.UPDATE, cost),
        (
            code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            admin.consumer_status,
            admin_headers.ConsumerStatusHeader,
            group,
            Action.GET,
            cost,
        ),
    )


def _about(info: BrokerInfo) -> tuple[Row, ...]:
    code, cluster, cost = RequestCode, Resource.CLUSTER, Cost.ADMIN
    stats, units = admin_headers.BrokerStatsHeader, admin_headers.ConsumeQueueHeader
    return (
        (code.GET_BROKER_RUNTIME_INFO, info.runtime, None, cluster, Action.GET, cost),
        (code.VIEW_BROKER_STATS_DATA, info.stats_data, stats, cluster, Action.GET, cost),
        (code.QUERY_CONSUME_QUEUE, info.consume_queue, units, Resource.TOPIC, Action.GET, cost),
        (RayMQRequestCode.DESCRIBE_BROKER, info.describe, None, cluster, Action.GET, cost),
    )


def _cleaning(cleaning: Cleaning) -> tuple[Row, ...]:
    code, cluster, delete, cost = RequestCode, Resource.CLUSTER, Action.DELETE, Cost.ADMIN
    return (
        (code.DELETE_EXPIRED_COMMITLOG, cleaning.delete_expired, None, cluster, delete, cost),
        (code.CLEAN_EXPIRED_CONSUMEQUEUE, cleaning.clean_expired, None, cluster, delete, cost),
        (code.CLEAN_UNUSED_TOPIC, cleaning.clean_unused, None, cluster, delete, cost),
    )


def _modes(modes: RequestModes) -> tuple[Row, ...]:
    code, group, cost = RequestCode, Resource.GROUP, Cost.ADMIN
    return (
        (code.SET_MESSAGE_REQUEST_MODE, modes.set, None, group, Action.UPDATE, cost),
        (code.GET_ALL_MESSAGE_REQUEST_MODE, modes.all, None, group, Action.LIST, cost),
    )


def _replicas(replicas: ReplicaRequests) -> tuple[Row, ...]:
    code, cluster, cost = RequestCode, Resource.CLUSTER, Cost.ADMIN
    flushed = admin_headers.MasterFlushOffsetHeader
    return (
        (code.GET_ALL_CONSUMER_OFFSET, replicas.consumer_offsets, None, cluster, Action.GET, cost),
        (code.GET_ALL_DELAY_OFFSET, replicas.delay_offsets, None, cluster, Action.GET, cost),
        (code.GET_BROKER_HA_STATUS, replicas.ha_status, None, cluster, Action.GET, cost),
        (code.RESET_MASTER_FLUSH_OFFSET, replicas.reset_flush_offset, flushed, cluster, Action.UPDATE, cost),
    )


def _config(config: SettingsRequests[BrokerSettings]) -> tuple[Row, ...]:
    code, cluster, cost = RequestCode, Resource.CLUSTER, Cost.ADMIN
    return (
        (code.GET_BROKER_CONFIG, config.get, None, cluster, Action.GET, cost),
        (code.UPDATE_BROKER_CONFIG, config.update, None, cluster, Action.UPDATE, cost),
    )
