"""Requests that create, change, delete or list subscription groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import orjson

from actors.broker.admin.topic_admin import body_objects
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.stats import BrokerStats
from actors.broker.core.table_names import MODE, OFFSET
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.transport.slices import Steps
from actors.wire.admin_headers import DeleteGroupHeader, GroupHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.json_fields import load_kept_object
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, DecodedRequest, Resource, Target, on_every, on_group
from store.message.group_config import SubscriptionGroupConfig


class GroupAdminRequests:
    """Request handler that creates, changes, deletes and lists subscription groups."""

    def __init__(self, tables: BrokerTables, stats: BrokerStats) -> None:
        """Create the handler. `stats` holds the counters of each group, which are dropped with the group."""
        self._groups = tables.groups
        self._offsets = tables.offsets
        self._stats = stats

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        served = partial(RequestRow, on_slave=OnSlave.SERVED)
        code, groups = RequestCode, on_every(Resource.GROUP, Action.LIST)
        row, deletion = partial(RequestRow, changes=(MODE,)), partial(RequestRow, changes=(MODE, OFFSET))
        get, delete = on_group(Action.GET, "group"), on_group(Action.DELETE, "group_name")
        return (
            row(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self.update_group, None, _group),
            row(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, self.update_groups, None, _listed_groups),
            deletion(code.DELETE_SUBSCRIPTIONGROUP, self.delete_group, DeleteGroupHeader, delete),
            served(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_groups, None, groups),
            served(code.GET_SUBSCRIPTIONGROUP_CONFIG, self.group_config, GroupHeader, get),
        )

    def update_group(self, context: RequestContext) -> RemotingCommand:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: create a group or replace its settings."""
        self._groups.update(_group_config(load_kept_object(context.command.body, "subscription group")))
        return RemotingCommand.response()

    def update_groups(self, context: RequestContext) -> None:
        """Handle UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: create or change all groups of the list.

        Raises Refused if any entry is not valid; then no group is changed.
        """
        context.work(self._update_groups(context))

    def _update_groups(self, context: RequestContext) -> Steps:
        listed = body_objects(context.command.body, "groupConfigList")
        yield from self._groups.update_all([_group_config(each) for each in listed])
        return RemotingCommand.response()

    def delete_group(self, context: RequestContext) -> RemotingCommand:
        """Handle DELETE_SUBSCRIPTIONGROUP: delete a group, with its offsets if `cleanOffset` is set."""
        header: DeleteGroupHeader = context.header
        self._groups.delete(header.group_name)
        if header.clean_offset:
            self._offsets.remove_group(header.group_name)
        self._stats.forget_group(header.group_name)
        return RemotingCommand.response()

    def group_config(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_SUBSCRIPTIONGROUP_CONFIG: return the settings of one group as JSON.

        Raises Refused (SUBSCRIPTION_GROUP_NOT_EXIST) if it does not exist.
        """
        header: GroupHeader = context.header
        group = self._groups.table.groups.get(header.group)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {header.group!r} does not exist here: create it with mqadmin updateSubGroup",
            )
        return RemotingCommand.response(body=orjson.dumps(group.to_json()))

    def all_groups(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_ALL_SUBSCRIPTIONGROUP_CONFIG: return the settings of all groups as JSON."""
        return RemotingCommand.response(body=orjson.dumps(self._groups.table.to_json()))


def _group_config(content: Mapping[str, Any]) -> SubscriptionGroupConfig:
    try:
        return SubscriptionGroupConfig.from_json(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"{content!r} is not a valid subscription group: {error!r}"
        ) from error


def _group(context: DecodedRequest) -> Iterable[Target]:
    group = _group_config(load_kept_object(context.command.body, "subscription group"))
    return (Target(Resource.GROUP, group.group_name, Action.UPDATE),)


def _listed_groups(context: DecodedRequest) -> Iterable[Target]:
    for content in body_objects(context.command.body, "groupConfigList"):
        yield Target(Resource.GROUP, _group_config(content).group_name, Action.UPDATE)
