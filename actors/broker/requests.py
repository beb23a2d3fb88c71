"""The broker's request table: every code it answers, and what each is about."""

from __future__ import annotations

from dataclasses import dataclass

from actors.broker.admin import AdminRequests
from actors.broker.client_requests import ClientRequests
from actors.broker.offset_requests import OffsetRequests
from actors.broker.pull import Puller
from actors.broker.queues import QueueQueries
from actors.broker.send import Sender
from actors.broker.send_back import SendBack
from actors.remoting import headers, hot_headers
from actors.remoting.codes import RayMQRequestCode, RequestCode
from actors.remoting.table import Action, Cost, RequestTable, Resource


@dataclass(frozen=True, slots=True)
class Handlers:
    """The parts of a broker that answer requests."""

    sender: Sender
    send_back: SendBack
    puller: Puller
    queues: QueueQueries
    offsets: OffsetRequests
    clients: ClientRequests
    admin: AdminRequests


def request_table(handlers: Handlers) -> RequestTable:
    """What clients, tools and rebalancers may ask of a broker."""
    table = RequestTable()
    _add_sending(table, handlers)
    _add_reading(table, handlers)
    _add_groups(table, handlers)
    _add_admin(table, handlers.admin)
    return table


def add_group_changed(table: RequestTable, clients: ClientRequests) -> None:
    """What a rebalancer may say, also over the connection that the broker has opened to it."""
    table.add(
        RayMQRequestCode.GROUP_CHANGED, clients.group_changed, headers.ConsumerGroupHeader, cost=Cost.CLIENT
    )


def _add_sending(table: RequestTable, handlers: Handlers) -> None:
    pub = {"resource": Resource.TOPIC, "action": Action.PUB, "cost": Cost.SEND}
    short, long = hot_headers.SendMessageHeader, hot_headers.SendMessageHeaderV1
    sender = handlers.sender
    table.add(RequestCode.SEND_MESSAGE, sender.send, long, **pub)
    table.add(RequestCode.SEND_MESSAGE_V2, sender.send, short, **pub)
    table.add(RequestCode.SEND_BATCH_MESSAGE, sender.send_batch, short, **pub)
    table.add(RayMQRequestCode.SEND_RECORDS, sender.send_records, headers.SendRecordsHeader, **pub)
    table.add(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        handlers.send_back.send_back,
        headers.ConsumerSendMsgBackHeader,
        resource=Resource.GROUP,
        action=Action.SUB,
        cost=Cost.SEND,
    )


def _add_reading(table: RequestTable, handlers: Handlers) -> None:
    sub = {"resource": Resource.TOPIC, "action": Action.SUB, "cost": Cost.PULL}
    get = {"resource": Resource.TOPIC, "action": Action.GET, "cost": Cost.QUERY}
    puller, queues = handlers.puller, handlers.queues
    table.add(RequestCode.PULL_MESSAGE, puller.pull, hot_headers.PullMessageHeader, **sub)
    table.add(RequestCode.LITE_PULL_MESSAGE, puller.pull, hot_headers.PullMessageHeader, **sub)
    table.add(RayMQRequestCode.PULL_RECORDS, puller.pull_records, headers.PullRecordsHeader, **sub)
    table.add(RequestCode.GET_MAX_OFFSET, queues.max_offset, headers.TopicQueueHeader, **get)
    table.add(RequestCode.GET_MIN_OFFSET, queues.min_offset, headers.TopicQueueHeader, **get)
    table.add(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queues.search_offset, headers.SearchOffsetHeader, **get)
    table.add(
        RequestCode.GET_EARLIEST_MSG_STORETIME, queues.earliest_store_time, headers.TopicQueueHeader, **get
    )
    table.add(RequestCode.VIEW_MESSAGE_BY_ID, queues.view_message, headers.ViewMessageHeader, **get)
    table.add(RequestCode.QUERY_MESSAGE, queues.query_message, headers.QueryMessageHeader, **get)
    table.add(RayMQRequestCode.DESCRIBE_SPLITS, queues.describe_splits, headers.TopicHeader, **get)


def _add_groups(table: RequestTable, handlers: Handlers) -> None:
    sub = {"resource": Resource.GROUP, "action": Action.SUB, "cost": Cost.CLIENT}
    offsets, clients = handlers.offsets, handlers.clients
    table.add(RequestCode.QUERY_CONSUMER_OFFSET, offsets.query, headers.QueryConsumerOffsetHeader, **sub)
    table.add(RequestCode.UPDATE_CONSUMER_OFFSET, offsets.update, headers.UpdateConsumerOffsetHeader, **sub)
    table.add(RayMQRequestCode.COMMIT_OFFSETS, offsets.commit_all, None, **sub)
    table.add(RayMQRequestCode.SYNC_GROUP, clients.sync_group, None, **sub)
    table.add(RequestCode.GET_CONSUMER_LIST_BY_GROUP, clients.members, headers.ConsumerGroupHeader, **sub)
    table.add(RequestCode.HEART_BEAT, clients.heartbeat, cost=Cost.HEARTBEAT)
    table.add(
        RequestCode.UNREGISTER_CLIENT, clients.unregister, headers.UnregisterClientHeader, cost=Cost.CLIENT
    )
    add_group_changed(table, clients)


def _add_admin(table: RequestTable, admin: AdminRequests) -> None:
    topic, group = {"resource": Resource.TOPIC}, {"resource": Resource.GROUP}
    table.add(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        admin.update_topic,
        headers.CreateTopicHeader,
        action=Action.UPDATE,
        **topic,
    )
    table.add(
        RequestCode.DELETE_TOPIC_IN_BROKER,
        admin.delete_topic,
        headers.DeleteTopicHeader,
        action=Action.DELETE,
        **topic,
    )
    table.add(
        RequestCode.GET_TOPIC_CONFIG, admin.topic_config, headers.TopicHeader, action=Action.GET, **topic
    )
    table.add(RequestCode.GET_ALL_TOPIC_CONFIG, admin.all_topics, action=Action.LIST, **topic)
    table.add(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, admin.update_group, action=Action.UPDATE, **group
    )
    table.add(RequestCode.DELETE_SUBSCRIPTIONGROUP, admin.delete_group, action=Action.DELETE, **group)
    table.add(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, admin.all_groups, action=Action.LIST, **group)
