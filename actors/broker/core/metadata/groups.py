"""Subscription groups: the settings of each consumer group.

A group is created when a client first uses it, if the setting `auto_create_groups` is on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.attributes import GROUP_ATTRIBUTES, apply_attribute_changes
from actors.wire.bodies.routes import PERM_READ
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.logs import get_logger
from store.message.group_config import SubscriptionGroupConfig
from store.message.pop_records import POP_RETRY_SEPARATORS
from store.message.validate import RETRY_TOPIC_PREFIX, SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS, check_group
from store.metadata import SubscriptionGroupTable
from store.metadata.pieces import changed_names
from store.store_errors import MessageInvalid

_log = get_logger(__name__)


class Groups:
    """The subscription groups of one broker."""

    def __init__(
        self, settings: BrokerSettings, table: SubscriptionGroupTable, on_change: Callable[[str], None]
    ) -> None:
        """Add the system groups that `table` lacks.

        `on_change` is called with the name of a group that was created, changed or deleted.
        """
        self._settings = settings
        self.table = table
        self._on_change = on_change
        for name in sorted(SYSTEM_GROUPS):
            if name not in table.groups:
                table.put(SubscriptionGroupConfig(name, consume_broadcast_enable=True))

    def get(self, name: str) -> SubscriptionGroupConfig:
        """Return the group's settings. Creates a missing group if that is allowed; else raises Refused."""
        group = self.table.groups.get(name)
        if group is not None:
            return group
        if not self._settings.auto_create_groups and not name.startswith(SYSTEM_GROUP_PREFIX):
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {name!r} does not exist on broker {self._settings.broker_name}: create it first, "
                "or set auto_create_groups to true",
            )
        group = SubscriptionGroupConfig(name)
        self.update(group)
        return group

    def of_retry_topic(self, name: str) -> str:
        """Return the group of a retry topic: `%RETRY%group`, or that of POP, `%RETRY%group_topic`.

        The name of a POP topic is ambiguous: of the existing groups, the one with the longest name applies.
        """
        rest, groups = name.removeprefix(RETRY_TOPIC_PREFIX), self.table.groups
        if rest in groups:
            return rest
        ends = (index for index in range(len(rest) - 1, 0, -1) if rest[index] in POP_RETRY_SEPARATORS)
        return next((rest[:end] for end in ends if rest[:end] in groups), rest)

    def for_consuming(self, name: str, topic: str = "") -> SubscriptionGroupConfig:
        """Return the group's settings.

        Raises Refused if it does not exist or may not consume, or is forbidden to read `topic`.
        """
        group = self.get(name)
        if not group.consume_enable:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"group {name!r} may not consume: set its consumeEnable to true"
            )
        forbidden = self.table.forbidden.get(name)
        if forbidden is not None and forbidden.get(topic, 0) & PERM_READ:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                # RocketMQ's remark up to the colon.
                f"the consumer group[{name}] is forbidden for topic[{topic}]: change "
                "forbiddenTable in config/subscriptionGroup.json",
            )
        return group

    def update(self, group: SubscriptionGroupConfig) -> None:
        """Create the group or replace its settings; its `attributes` are changes to the existing ones.

        Raises Refused if its name or an attribute is not valid.
        """
        for _ in self.update_all([group]):
            pass

    def update_all(self, groups: Sequence[SubscriptionGroupConfig]) -> Iterator[None]:
        """Create or change all groups, one in each step.

        Raises Refused in the first step if a group is not valid; then no group is changed.
        """
        checked = [self._with_changes(group) for group in groups]
        for group in checked:
            self._check_room(group.group_name)
            self.table.put(group)
            _log.info("group_config_changed", group=group.group_name)
            self._on_change(group.group_name)
            yield

    def replace_all(self, table: SubscriptionGroupTable) -> None:
        """Take over all groups of a master, in one step."""
        if table.data_version == self.table.data_version:
            return
        before = self.table.groups
        self.table.replace_all(table)
        for name in changed_names(before, table.groups):
            self._on_change(name)

    def _with_changes(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        try:
            check_group(group.group_name)
        except MessageInvalid as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, error.remark) from error
        old = self.table.groups.get(group.group_name)
        current = None if old is None else old.attributes
        return replace(group, attributes=apply_attribute_changes(GROUP_ATTRIBUTES, current, group.attributes))

    def _check_room(self, name: str) -> None:
        """Raise Refused if the group does not exist and the broker has as many groups as it may have."""
        if name not in self.table.groups and len(self.table.groups) >= self._settings.max_groups:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"group {name[:100]!r} cannot be created: broker {self._settings.broker_name} has the "
                f"limit max_groups = {self._settings.max_groups:,}: delete unused groups, or raise it",
            )

    def delete(self, name: str) -> None:
        """Delete the group, if it exists."""
        if self.table.remove(name):
            _log.info("group_deleted", group=name)
            self._on_change(name)
