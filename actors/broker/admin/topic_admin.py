"""The requests that change or list topics and groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson

from actors.broker.metadata.tables import BrokerTables
from actors.broker.registration import WhenRegistered
from actors.broker.stats import BrokerStats
from actors.remoting.admin_headers import DeleteGroupHeader, GroupHeader
from actors.remoting.bodies.routes import encode_topic_list
from actors.remoting.codes import RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import CreateTopicHeader, DeleteTopicHeader, TopicHeader
from actors.remoting.json_fields import get_objects, load_kept_object
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext, RequestRow
from actors.remoting.targets import Action, Resource, Target, on_every, on_group, on_topic
from store.metadata import SubscriptionGroupConfig, TopicConfig


class TopicAdmin:
    """Answers what administrators ask of a broker."""

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
            tables: topics, groups and offsets to change.
            stats: forgets what is deleted.
            remove_queues: removes the queues of a topic; the topic cannot be created until it returns.
            wake: ends the waits of the pulls of a topic.
            when_registered: calls back once the nameservers know all topics as they are now.
        """
        self._topics = tables.topics
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._stats = stats
        self._wake = wake
        self._remove_queues = remove_queues
        self._when_registered = when_registered

    def rows(self) -> Iterable[RequestRow]:
        """The requests that this handles."""
        code, row = RequestCode, RequestRow
        update, get, delete = on_topic(Action.UPDATE), on_topic(Action.GET), on_topic(Action.DELETE)
        topics, groups = on_every(Resource.TOPIC, Action.LIST), on_every(Resource.GROUP, Action.LIST)
        get_group, delete_group = on_group(Action.GET, "group"), on_group(Action.DELETE, "group_name")
        return (
            row(code.UPDATE_AND_CREATE_TOPIC, self.update_topic, CreateTopicHeader, update),
            row(code.UPDATE_AND_CREATE_TOPIC_LIST, self.update_topics, None, _listed_topics),
            row(code.DELETE_TOPIC_IN_BROKER, self.delete_topic, DeleteTopicHeader, delete),
            row(code.GET_TOPIC_CONFIG, self.topic_config, TopicHeader, get),
            row(code.GET_ALL_TOPIC_CONFIG, self.all_topics, None, topics),
            row(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self.system_topics, None, topics),
            row(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update_group, None, _group),
            row(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.update_groups, None, _listed_groups),
            row(code.DELETE_SUBSCRIPTIONGROUP, self.delete_group, DeleteGroupHeader, delete_group),
            row(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_groups, None, groups),
            row(code.GET_SUBSCRIPTIONGROUP_CONFIG, self.group_config, GroupHeader, get_group),
        )

    def update_topic(self, context: RequestContext) -> None:
        """UPDATE_AND_CREATE_TOPIC."""
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
        """UPDATE_AND_CREATE_TOPIC_LIST: all of them, or none where one cannot be read or is not allowed."""
        self._topics.update_all([_topic_config(each) for each in _objects(context, "topicConfigList")])
        self._respond_when_registered(context)

    def _respond_when_registered(self, context: RequestContext) -> None:
        self._when_registered(lambda: context.reply(RemotingCommand.response()))

    def delete_topic(self, context: RequestContext) -> None:
        """DELETE_TOPIC_IN_BROKER: the topic, its queues and what groups have consumed of it."""
        header: DeleteTopicHeader = context.header
        self._topics.delete(header.topic)
        self._offsets.remove_topic(header.topic)
        self._stats.forget_topic(header.topic)
        context.spawn(self._delete_queues(header.topic, self._remove_queues(header.topic)))

    async def _delete_queues(self, topic: str, removal: Awaitable[None]) -> RemotingCommand:
        await removal
        self._wake(topic)
        return RemotingCommand.response()

    def topic_config(self, context: RequestContext) -> RemotingCommand:
        """GET_TOPIC_CONFIG."""
        header: TopicHeader = context.header
        return RemotingCommand.response(body=orjson.dumps(self._topics.get(header.topic).to_json()))

    def all_topics(self, context: RequestContext) -> RemotingCommand:
        """GET_ALL_TOPIC_CONFIG."""
        return RemotingCommand.response(body=orjson.dumps(self._topics.table.to_json()))

    def update_group(self, context: RequestContext) -> RemotingCommand:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
        self._groups.update(_group_config(load_kept_object(context.command.body, "subscription group")))
        return RemotingCommand.response()

    def update_groups(self, context: RequestContext) -> RemotingCommand:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: all of them, or none where one cannot be read or is not
        allowed.
        """
        self._groups.update_all([_group_config(each) for each in _objects(context, "groupConfigList")])
        return RemotingCommand.response()

    def delete_group(self, context: RequestContext) -> RemotingCommand:
        """DELETE_SUBSCRIPTIONGROUP, with its offsets where `cleanOffset` says so."""
        header: DeleteGroupHeader = context.header
        self._groups.delete(header.group_name)
        if header.clean_offset:
            self._offsets.remove_group(header.group_name)
        self._stats.forget_group(header.group_name)
        return RemotingCommand.response()

    def system_topics(self, context: RequestContext) -> RemotingCommand:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
        return RemotingCommand.response(body=encode_topic_list(self._topics.system_names()))

    def group_config(self, context: RequestContext) -> RemotingCommand:
        """GET_SUBSCRIPTIONGROUP_CONFIG."""
        header: GroupHeader = context.header
        group = self._groups.table.groups.get(header.group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"group {header.group!r} does not exist here"
            )
        return RemotingCommand.response(body=orjson.dumps(group.to_json()))

    def all_groups(self, context: RequestContext) -> RemotingCommand:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        return RemotingCommand.response(body=orjson.dumps(self._groups.table.to_json()))


def _objects(context: RequestContext, key: str) -> list[dict[str, Any]]:
    found = get_objects(load_kept_object(context.command.body, f"list of {key}"), key)
    if not found:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"the body's {key} is empty: send at least one")
    return found


def _topic_config(content: Mapping[str, Any]) -> TopicConfig:
    try:
        return TopicConfig.from_json(content)
    except ValueError as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, f"{content!r} is no topic: {error}") from error


def _group_config(content: Mapping[str, Any]) -> SubscriptionGroupConfig:
    try:
        return SubscriptionGroupConfig.from_json(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"{content!r} is no subscription group: {error!r}"
        ) from error


def parse_attributes(text: str) -> dict[str, str]:
    """Changes of attributes as tools send them: `+message.type=FIFO,-other`; keys keep their sign. Raises
    Refused.
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
                f"attribute {change!r}: write +name=value to set it, -name to remove it",
            )
        attributes[key] = value if change[0] == "+" else ""
    return attributes


def _listed_topics(context: RequestContext) -> Iterable[Target]:
    for content in _objects(context, "topicConfigList"):
        yield Target(Resource.TOPIC, _topic_config(content).topic_name, Action.UPDATE)


def _group(context: RequestContext) -> Iterable[Target]:
    group = _group_config(load_kept_object(context.command.body, "subscription group"))
    return (Target(Resource.GROUP, group.group_name, Action.UPDATE),)


def _listed_groups(context: RequestContext) -> Iterable[Target]:
    for content in _objects(context, "groupConfigList"):
        yield Target(Resource.GROUP, _group_config(content).group_name, Action.UPDATE)
