"""Requests that create, change, delete or list topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import orjson

from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.registration import WhenRegistered
from actors.broker.core.stats import BrokerStats
from actors.broker.core.table_names import MODE
from actors.transport.request import BODY_BYTES_MAX, OnSlave, RequestContext, RequestRow
from actors.transport.slices import Steps
from actors.wire.bodies.routes import encode_topic_list
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import Buffer, RemotingCommand
from actors.wire.header import QUEUES_MAX, too_long
from actors.wire.headers import CreateTopicHeader, DeleteTopicHeader, TopicHeader
from actors.wire.json_fields import KEPT_BYTES_MAX, get_objects, load_kept_object
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, DecodedRequest, Resource, Target, on_every, on_topic
from store.message.topic_config import TopicConfig


class TopicAdmin:
    """Request handler that creates, changes, deletes and lists topics."""

    def __init__(
        self,
        tables: BrokerTables,
        stats: BrokerStats,
        remove_queues: Callable[[str], Awaitable[None]],
        wake: Callable[[str], None],
        when_registered: WhenRegistered,
    ) -> None:
        """Create the handler.

        Args:
            tables: the broker's topics, and what belongs to them.
            stats: the counters of each topic, which are dropped with the topic.
            remove_queues: removes all queues of a topic; the topic cannot be created until this has finished.
            wake: completes all held pulls of a topic.
            when_registered: calls its argument when all nameservers have received the current topics.
        """
        self._topics = tables.topics
        self._stats = stats
        self._wake = wake
        self._remove_queues = remove_queues
        self._when_registered = when_registered

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code, row = RequestCode, partial(RequestRow, changes=(MODE,))
        update, get, delete = on_topic(Action.UPDATE), on_topic(Action.GET), on_topic(Action.DELETE)
        topics = on_every(Resource.TOPIC, Action.LIST)
        served = partial(RequestRow, on_slave=OnSlave.SERVED)
        return (
            row(code.UPDATE_AND_CREATE_TOPIC, self.update_topic, CreateTopicHeader, update),
            row(code.UPDATE_AND_CREATE_TOPIC_LIST, self.update_topics, None, _listed_topics),
            RequestRow(
                code.DELETE_TOPIC_IN_BROKER, self.delete_topic, DeleteTopicHeader, delete, is_for_all=True
            ),
            served(code.GET_TOPIC_CONFIG, self.topic_config, TopicHeader, get),
            served(code.GET_ALL_TOPIC_CONFIG, self.all_topics, None, topics),
            served(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, None, topics),
        )

    def update_topic(self, context: RequestContext) -> None:
        """Handle UPDATE_AND_CREATE_TOPIC: create a topic or change its settings.

        The broker responds when the nameservers have received the change. Raises Refused if a setting is not
        valid.
        """
        header: CreateTopicHeader = context.header
        self._topics.update(
            TopicConfig(
                header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sys_flag,
                order=header.order,
                attributes=parse_attributes(header.attributes or ""),
            )
        )
        self._respond_when_registered(context)

    def update_topics(self, context: RequestContext) -> None:
        """Handle UPDATE_AND_CREATE_TOPIC_LIST: create or change all topics of the list.

        Raises Refused if any entry is not valid; then no topic is changed.
        """
        context.work(self._update_topics(context))

    def _update_topics(self, context: RequestContext) -> Steps:
        listed = body_objects(context.command.body, "topicConfigList")
        topics = []
        for each in listed:
            topics.append(_topic_config(each))
            yield
        yield from self._topics.update_all(topics)
        self._respond_when_registered(context)
        return None

    def _respond_when_registered(self, context: RequestContext) -> None:
        self._when_registered(lambda: context.reply(RemotingCommand.response()))

    def delete_topic(self, context: RequestContext) -> None:
        """Handle DELETE_TOPIC_IN_BROKER: delete a topic, its queues and the offsets committed in it."""
        header: DeleteTopicHeader = context.header
        self._topics.delete(header.topic)
        self._stats.forget_topic(header.topic)
        context.spawn(self._delete_queues(header.topic, self._remove_queues(header.topic)))

    async def _delete_queues(self, topic: str, removal: Awaitable[None]) -> RemotingCommand:
        await removal
        self._wake(topic)
        return RemotingCommand.response()

    def topic_config(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_TOPIC_CONFIG: return the settings of one topic as JSON.

        Raises Refused (TOPIC_NOT_EXIST) if it does not exist.
        """
        header: TopicHeader = context.header
        return RemotingCommand.response(body=orjson.dumps(self._topics.get(header.topic).to_json()))

    def all_topics(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_ALL_TOPIC_CONFIG: return the settings of all topics as JSON."""
        return RemotingCommand.response(body=orjson.dumps(self._topics.table.to_json()))

    def system_topics(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_SYSTEM_TOPIC_LIST_FROM_BROKER: return the names of all system topics."""
        return RemotingCommand.response(body=encode_topic_list(self._topics.system_names()))


def body_objects(body: Buffer, key: str) -> list[dict[str, Any]]:
    """Return the JSON objects in the list `key` of a request body. Raises Refused if the list is empty."""
    found = get_objects(load_kept_object(body, f"list of {key}", BODY_BYTES_MAX), key)
    if len(found) > QUEUES_MAX:
        raise too_long("field", key, found, QUEUES_MAX)
    if not found:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"{key} in the request body is empty: send at least one entry"
        )
    for entry in found:
        size_bytes = len(orjson.dumps(entry))
        if size_bytes > KEPT_BYTES_MAX:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"an entry of {key} has {size_bytes:,} bytes, the limit is {KEPT_BYTES_MAX:,}: shorten it",
            )
    return found


def _topic_config(content: Mapping[str, Any]) -> TopicConfig:
    try:
        return TopicConfig.from_json(content)
    except ValueError as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"{content!r} is not a valid topic configuration: {error}"
        ) from error


def parse_attributes(text: str) -> dict[str, str]:
    """Parse a list of attribute changes such as `+message.type=FIFO,-reserve.time`.

    Returns:
        The new value by signed name, such as `{"+message.type": "FIFO", "-reserve.time": ""}`.

    Raises:
        Refused: a change does not start with `+` or `-`, or has no name.
    """
    attributes: dict[str, str] = {}
    for part in text.split(","):
        change = part.strip()
        if not change:
            continue
        key, _, value = change.partition("=")
        if change[0] not in "+-" or len(key) < 2:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"topic attribute {change!r} is not valid: write +name=value to set it, -name to remove it",
            )
        attributes[key] = value if change[0] == "+" else ""
    return attributes


def _listed_topics(context: DecodedRequest) -> Iterable[Target]:
    for content in body_objects(context.command.body, "topicConfigList"):
        yield Target(Resource.TOPIC, _topic_config(content).topic_name, Action.UPDATE)
