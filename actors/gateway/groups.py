"""Groups: the settings of consumer groups, kept for a while, and the settings that their clients get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from google.protobuf.duration_pb2 import Duration

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.gateway.proto.definition_pb2 import (
    ClientType,
    Code,
    CustomizedBackoff,
    Language,
    Resource,
    RetryPolicy,
    Settings,
)
from actors.gateway.statuses import RpcFailed
from actors.gateway.topics import GatewayTopics, topic_name
from actors.transport.client import RemotingClient
from actors.wire.admin_headers import GroupHeader
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused, RemotingError
from store.common.clock import NS_PER_MS, Clock
from store.message.lite_topics import NAME_BYTES_MAX
from store.message.validate import check_group
from store.store_errors import MessageInvalid

GROUPS: Final = Bound(
    "gateway_groups", 10_000, AtLimit.EVICT, "Groups whose settings a gateway keeps for `route_cache_ms`."
)
RECEIVE_BATCH_SIZE: Final = 32
LONG_POLLING_S: Final = 20
BACKOFF_S: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""RocketMQ's delay levels."""
LITE_TYPES: Final = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)
CONSUMER_TYPES: Final = (ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER, *LITE_TYPES)
LITE_QUOTA: Final = 2_000
"""Lite topics that one client may subscribe, without the attribute `lite.sub.client.quota`."""
_I32_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class GatewayGroup:
    """The settings of a consumer group at one time."""

    is_fifo: bool
    retry_max: int
    since_ns: int
    bound_to: str = ""
    """The topic whose lite topics the group receives; empty if it is no lite group."""
    lite_quota: int = LITE_QUOTA
    is_wildcard: bool = False
    """True if each client receives all lite topics of the topic."""


UNKNOWN_GROUP: Final = GatewayGroup(False, len(BACKOFF_S) - 2, 0)
"""The settings of a group that does not exist yet."""


class GatewayGroups:
    """The consumer groups that clients of one gateway use."""

    def __init__(
        self, topics: GatewayTopics, client: RemotingClient, clock: Clock, refresh_ms: int, timeout_ms: int
    ) -> None:
        """Create the object; settings are used for `refresh_ms`, and requests take up to `timeout_ms`."""
        self._topics = topics
        self._client = client
        self._clock = clock
        self._refresh_ns = refresh_ms * NS_PER_MS
        self._timeout_ms = timeout_ms
        self._groups = Newest[str, GatewayGroup](GROUPS)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (self._groups.use(),)

    async def get(self, name: str, topic: str) -> GatewayGroup:
        """Return a group, as the brokers of `topic` know it.

        Raises RpcFailed if the topic does not exist, Refused or RemotingError if no broker responds: with a
        guess, the messages of a FIFO group could lose their order.
        """
        known, now_ns = self._groups.get(name), self._clock.monotonic_ns()
        if known is not None and now_ns - known.since_ns < self._refresh_ns:
            return known
        try:
            fields = await self._fields(name, (await self._topics.get(topic)).masters.values())
        except (Refused, RemotingError):
            if known is None:
                raise
            return known
        retry_max = int(fields.get("retryMaxTimes", len(BACKOFF_S) - 2))
        attributes = fields.get("attributes") or {}
        quota = int(attributes.get("lite.sub.client.quota", LITE_QUOTA))
        group = self._groups[name] = GatewayGroup(
            fields.get("consumeMessageOrderly") is True,
            retry_max,
            now_ns,
            attributes.get("lite.bind.topic", ""),
            quota if quota >= 0 else _I32_MAX,
            "lite.sub.wildcard" in attributes,
        )
        return group

    async def lite(self, name: str, topic: str) -> GatewayGroup:
        """Return a group that receives the lite topics of `topic`. Raises RpcFailed if it does not."""
        group = await self.get(name, topic)
        if not group.bound_to:
            raise RpcFailed(
                Code.ILLEGAL_CONSUMER_GROUP,
                f"group {name} is not a lite group: create it with the attribute lite.bind.topic={topic}",
            )
        if group.bound_to != topic:
            raise RpcFailed(
                Code.ILLEGAL_TOPIC, f"group {name} is bound to topic {group.bound_to}, and not to {topic}"
            )
        return group

    async def _fields(self, name: str, addresses: Iterable[str]) -> dict[str, Any]:
        """Return the settings of a group from the first broker that responds, {} if it does not exist yet."""
        failure: Refused | RemotingError | None = None
        for address in addresses:
            command = RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader(name).to_ext())
            try:
                response = await self._client.ask(address, command, self._timeout_ms)
            except (Refused, RemotingError) as error:
                if isinstance(error, Refused) and error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    return {}
                failure = error
            else:
                found: dict[str, Any] = orjson.loads(response.body)
                return found
        assert failure is not None, "a topic has at least one running broker"
        raise failure

    async def settings(self, given: Settings) -> Settings:
        """Return the settings of a consumer with the values that the server decides. Raises RpcFailed."""
        subscription = given.subscription
        name = group_name(subscription.group)
        topics = [topic_name(each.topic) for each in subscription.subscriptions]
        group = await self.get(name, topics[0]) if topics else UNKNOWN_GROUP
        if given.client_type in LITE_TYPES:
            for topic in topics:
                group = await self.lite(name, topic)
        elif group.bound_to:
            raise RpcFailed(
                Code.ILLEGAL_CONSUMER_GROUP,
                f"group {name} receives the lite topics of {group.bound_to}: use a lite consumer, or another "
                "group",
            )
        return consumer_settings(given, group)


def consumer_settings(given: Settings, group: GatewayGroup) -> Settings:
    """Return the settings of a consumer with the values that the server decides."""
    merged = Settings()
    merged.CopyFrom(given)
    found = merged.subscription
    found.fifo = group.is_fifo
    found.lite_subscription_quota, found.max_lite_topic_size = group.lite_quota, NAME_BYTES_MAX
    found.receive_batch_size = RECEIVE_BATCH_SIZE
    found.long_polling_timeout.seconds = LONG_POLLING_S
    backoff = CustomizedBackoff(next=[Duration(seconds=seconds) for seconds in BACKOFF_S])
    merged.backoff_policy.CopyFrom(RetryPolicy(max_attempts=group.retry_max + 1, customized_backoff=backoff))
    # The Python SDK stops reading commands if metrics are off; it tolerates an endpoint without them.
    is_python = given.user_agent.language == Language.PYTHON
    merged.metric.on = is_python and given.client_type == ClientType.PUSH_CONSUMER
    if merged.metric.on:
        merged.metric.endpoints.CopyFrom(given.access_point)
    return merged


def group_name(resource: Resource) -> str:
    """Return the name of a consumer group on the brokers. Raises RpcFailed if it is not valid."""
    namespace = resource.resource_namespace
    name = f"{namespace}%{resource.name}" if namespace else resource.name
    try:
        check_group(name)
    except MessageInvalid as error:
        raise RpcFailed(Code.ILLEGAL_CONSUMER_GROUP, error.remark) from None
    return name
