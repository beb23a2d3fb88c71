"""The declarative table of requests: code → handler, header type, resource, action, cost.

Access control, metrics, fast failure and the generated docs hang on these entries, not on the handlers.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from actors.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from actors.remoting.chain import RequestContext

Handler = Callable[["RequestContext"], RemotingCommand | None]


class HeaderType(Protocol):
    """What makes a typed header of a request's fields; raises Refused where one is missing or no number."""

    def from_ext(self, ext: Mapping[str, str]) -> Any:
        """The header that these fields are."""
        ...


class Resource(StrEnum):
    """What a request is about, for access control."""

    NONE = "none"
    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"


class Action(StrEnum):
    """What it does to that, by RocketMQ's names."""

    NONE = "none"
    PUB = "pub"
    SUB = "sub"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    GET = "get"
    LIST = "list"


class Cost(StrEnum):
    """Its class of cost: RocketMQ limits queues and waiting times by these."""

    SEND = "send"
    PULL = "pull"
    HEARTBEAT = "heartbeat"
    CLIENT = "client"
    QUERY = "query"
    ADMIN = "admin"


class RequestEntry:
    """One row of the table, with the counters of its code."""

    __slots__ = (
        "action",
        "answers",
        "code",
        "cost",
        "failures",
        "handler",
        "header_type",
        "refusals",
        "requests",
        "resource",
    )

    def __init__(
        self,
        code: int,
        handler: Handler,
        header_type: HeaderType | None,
        resource: Resource,
        action: Action,
        cost: Cost,
    ) -> None:
        self.code = int(code)
        self.handler = handler
        self.header_type = header_type
        self.resource = resource
        self.action = action
        self.cost = cost
        self.requests = 0
        self.answers = 0
        self.refusals = 0
        self.failures = 0


class RequestTable:
    """All requests that a process answers."""

    def __init__(self) -> None:
        self._entries: dict[int, RequestEntry] = {}

    def add(
        self,
        code: int,
        handler: Handler,
        header_type: HeaderType | None = None,
        *,
        resource: Resource = Resource.NONE,
        action: Action = Action.NONE,
        cost: Cost = Cost.ADMIN,
    ) -> None:
        """Answer this code with this handler; a code stands in the table once."""
        if code in self._entries:
            raise ValueError(f"request code {code} is in the table already")
        self._entries[int(code)] = RequestEntry(code, handler, header_type, resource, action, cost)

    @property
    def entries(self) -> Mapping[int, RequestEntry]:
        """The rows by code."""
        return self._entries

    def __iter__(self) -> Iterator[RequestEntry]:
        return iter(self._entries.values())

    def __contains__(self, code: int) -> bool:
        return code in self._entries
