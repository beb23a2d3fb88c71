"""Targets: the topics, groups and clusters that a request names, and what it does to them.

Each row of the request table declares them: access control, metrics and logs need not know the headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from actors.remoting.command import RemotingCommand

EVERY: Final = "*"
"""The name of a target that stands for all of its kind."""


class Resource(StrEnum):
    """The kinds of targets, by RocketMQ's names."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Action(StrEnum):
    """What a request does to a target, by RocketMQ's names."""

    PUB = "pub"
    SUB = "sub"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    GET = "get"
    LIST = "list"


class Target(NamedTuple):
    """One resource that a request names."""

    resource: Resource
    name: str
    action: Action


class DecodedRequest(Protocol):
    """What targets are read from: a `RequestContext`."""

    @property
    def command(self) -> RemotingCommand:
        """The request."""
        ...

    @property
    def header(self) -> Any:
        """Its typed header, None if its row has no header type."""
        ...


Targets = Callable[[DecodedRequest], Iterable[Target]]
"""Returns the targets of a decoded request; call it before the handler returns.

Raises Refused if the body cannot be decoded.
"""


def no_targets(context: DecodedRequest) -> Iterable[Target]:
    """Return nothing: the request names no resource."""
    return ()


def on_topic(action: Action, field: str = "topic") -> Targets:
    """Return the topic that a header's `field` names."""
    return lambda context: (Target(Resource.TOPIC, getattr(context.header, field), action),)


def on_group(action: Action, field: str = "consumer_group") -> Targets:
    """Return the group that a header's `field` names."""
    return lambda context: (Target(Resource.GROUP, getattr(context.header, field), action),)


def on_every(resource: Resource, action: Action) -> Targets:
    """Return one target that stands for all topics or groups."""
    found = (Target(resource, EVERY, action),)
    return lambda context: found


def on_cluster(action: Action) -> Targets:
    """Return the cluster as a whole."""
    return on_every(Resource.CLUSTER, action)


def each_of(*targets: Targets) -> Targets:
    """Return the targets of all of these, those with an empty name left out."""
    return lambda context: [target for one in targets for target in one(context) if target.name]
