"""Targets: the topics, groups and clusters that a request accesses, and the action on each.

Each row of the request table declares its targets, so access control, metrics and logs need not know the
headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from actors.wire.command import RemotingCommand

EVERY: Final = "*"
"""The name of a target that means all topics, all groups or the whole cluster."""


class Resource(StrEnum):
    """Kind of a target, under RocketMQ's names."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Action(StrEnum):
    """Action of a request on a target, under RocketMQ's names."""

    PUB = "pub"
    SUB = "sub"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    GET = "get"
    LIST = "list"


class Target(NamedTuple):
    """One resource that a request accesses, and the action on it."""

    resource: Resource
    name: str
    action: Action


class DecodedRequest(Protocol):
    """The part of `RequestContext` that targets are computed from."""

    @property
    def command(self) -> RemotingCommand:
        """The request command."""

    @property
    def header(self) -> Any:
        """The typed header, or None if the row has no header type."""


Targets = Callable[[DecodedRequest], Iterable[Target]]
"""Function that returns the targets of a decoded request.

Call it before the handler returns, which may release header and body. Raises Refused if the body cannot be
decoded.
"""


def no_targets(context: DecodedRequest) -> Iterable[Target]:
    """Return no targets: the request accesses no resource."""
    return ()


def on_topic(action: Action, field: str = "topic") -> Targets:
    """Return a function whose target is the topic in the header field `field`."""
    return lambda context: (Target(Resource.TOPIC, getattr(context.header, field), action),)


def on_group(action: Action, field: str = "consumer_group") -> Targets:
    """Return a function whose target is the consumer group in the header field `field`."""
    return lambda context: (Target(Resource.GROUP, getattr(context.header, field), action),)


def on_every(resource: Resource, action: Action) -> Targets:
    """Return a function whose target is all resources of one kind."""
    found = (Target(resource, EVERY, action),)
    return lambda context: found


def on_cluster(action: Action) -> Targets:
    """Return a function whose target is the whole cluster."""
    return on_every(Resource.CLUSTER, action)


def each_of(*targets: Targets) -> Targets:
    """Return a function that combines the targets of several; targets with an empty name are omitted."""
    return lambda context: [target for one in targets for target in one(context) if target.name]
