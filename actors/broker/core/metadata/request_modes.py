"""Message request modes (mqadmin setConsumeMode): the mode, PULL or POP, in which a group reads a topic.

QUERY_ASSIGNMENT returns the mode to consumers that do not rebalance themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import orjson

from actors.broker.core.metadata.groups import Groups
from actors.broker.core.metadata.topics import Topics
from actors.broker.core.table_names import MODE
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.json_fields import load_kept_object
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, DecodedRequest, Resource, Target, each_of, on_every
from store.message.validate import RETRY_TOPIC_PREFIX
from store.metadata import MessageRequestMode, MessageRequestModeTable

PULL: Final = "PULL"
POP: Final = "POP"


class RequestModes:
    """Request handler for SET_MESSAGE_REQUEST_MODE and GET_ALL_MESSAGE_REQUEST_MODE."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        table: MessageRequestModeTable,
        on_change: Callable[[], None],
    ) -> None:
        """Create the handler. `on_change` is called after `table` has changed."""
        self.table = table
        self._topics = topics
        self._groups = groups
        self._on_change = on_change

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        code = RequestCode
        every = each_of(on_every(Resource.GROUP, Action.LIST), on_every(Resource.TOPIC, Action.LIST))
        return (
            RequestRow(code.SET_MESSAGE_REQUEST_MODE, self.set, None, _targets, changes=(MODE,)),
            RequestRow(code.GET_ALL_MESSAGE_REQUEST_MODE, self.all, None, every, on_slave=OnSlave.SERVED),
        )

    def set(self, context: RequestContext) -> RemotingCommand:
        """Handle SET_MESSAGE_REQUEST_MODE: set the mode of a topic and group.

        Raises Refused for an unknown mode, a retry topic, or a topic that does not exist.
        """
        mode = _decode(context)
        self._check(mode)
        self.table.put(mode)
        self._on_change()
        return RemotingCommand.response()

    def all(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_ALL_MESSAGE_REQUEST_MODE: return all modes as JSON."""
        return RemotingCommand.response(body=orjson.dumps(self.table.to_json()))

    def of(self, topic: str, group: str) -> MessageRequestMode:
        """Return the mode in which a group reads a topic: PULL if none was set, and for retry topics."""
        found = None if topic.startswith(RETRY_TOPIC_PREFIX) else self.table.modes.get(topic, {}).get(group)
        return found or MessageRequestMode(topic=topic, consumer_group=group)

    def replace_all(self, table: MessageRequestModeTable) -> None:
        """Take over all modes of a master, in one step."""
        if table.modes != self.table.modes:
            self.table.modes = table.modes
            self._on_change()

    def restore(self, topic: str, group: str, mode: MessageRequestMode | None) -> None:
        """Set the mode of a topic and group as its Raft group has it; None removes it."""
        if mode is not None:
            self.table.put(mode)
        else:
            self.table.modes.get(topic, {}).pop(group, None)
        self._on_change()

    def forget_topic(self, topic: str) -> None:
        """Remove the modes of a deleted topic."""
        if self.table.remove_topic(topic):
            self._on_change()

    def forget_group(self, group: str) -> None:
        """Remove the modes of a deleted group."""
        if self.table.remove_group(group):
            self._on_change()

    def _check(self, mode: MessageRequestMode) -> None:
        if mode.topic.startswith(RETRY_TOPIC_PREFIX):
            raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self._topics.find(mode.topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        self._groups.get(mode.consumer_group)
        if mode.mode not in (PULL, POP):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request mode {mode.mode[:100]!r} does not exist: use PULL or POP",
            )


def _targets(context: DecodedRequest) -> Iterable[Target]:
    mode = _decode(context)
    return (
        Target(Resource.TOPIC, mode.topic, Action.UPDATE),
        Target(Resource.GROUP, mode.consumer_group, Action.UPDATE),
    )


def _decode(context: DecodedRequest) -> MessageRequestMode:
    content = load_kept_object(context.command.body, "message request mode")
    try:
        return MessageRequestMode.from_json(content)
    except ValueError as error:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"{content!r} is not a valid message request mode: {error}"
        ) from error
