"""Namespace: a prefix of the topics and groups of a client (RocketMQ NamespaceUtil).

    application      cluster
    orders           shop%orders
    %RETRY%billing   %RETRY%shop%billing
    %DLQ%billing     %DLQ%shop%billing

Producers and consumers use the names of the cluster inside, and translate them where the application passes
or receives them. System topics have no namespace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from cluster.client.errors import ConfigInvalid
from cluster.client.transport.topic_route import TopicRoute
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

SEPARATOR = "%"
SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
SYSTEM_PREFIXES = ("rmq_sys_", "CID_RMQ_SYS_")
_NAME = re.compile(r"[|a-zA-Z0-9_-]*\Z")

Choose = Callable[[TopicRoute], MessageQueue]


@dataclass(frozen=True, slots=True)
class Namespace:
    """Translates names of the application to names of the cluster, and back. Without a name it changes none.

    `wrap` leaves a name unchanged that has the prefix already, as RocketMQ's clients do.
    """

    name: str = ""
    _views: dict[str, tuple[TopicRoute, TopicRoute]] = field(default_factory=dict, repr=False, compare=False)

    NONE: ClassVar[Namespace]

    def __post_init__(self) -> None:
        """Raise ConfigInvalid unless `name` is empty or a valid prefix."""
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise ConfigInvalid(f"namespace is {self.name!r}: give letters, digits, |, _ and - only")

    def wrap(self, resource: str) -> str:
        """Return the name of the cluster for a topic or group of the application."""
        if not self.name or _is_system(resource):
            return resource
        kind, plain = _split(resource)
        return resource if plain.startswith(self._prefix) else f"{kind}{self._prefix}{plain}"

    def unwrap(self, resource: str) -> str:
        """Return the name of the application; `resource` itself if it is not in this namespace."""
        if not self.name:
            return resource
        kind, plain = _split(resource)
        return kind + plain.removeprefix(self._prefix)

    @property
    def _prefix(self) -> str:
        return f"{self.name}{SEPARATOR}"

    def wrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return `queue` with the name that its topic has in the cluster."""
        if not self.name or not isinstance(queue, MessageQueue):  # the caller reports other types
            return queue
        return queue._replace(topic=self.wrap(queue.topic))

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return `queue` with the name that its topic has for the application."""
        return queue._replace(topic=self.unwrap(queue.topic)) if self.name else queue

    def wrap_queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return `queues` with the names of the cluster."""
        return list(map(self.wrap_queue, queues))

    def unwrap_queues(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return `queues` with the names of the application."""
        return list(map(self.unwrap_queue, queues))

    def unwrap_messages(self, messages: Iterable[MessageExt]) -> None:
        """Set the topics of `messages` to the names of the application."""
        if self.name:
            for message in messages:
                message.topic = self.unwrap(message.topic)

    def unwrap_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return Arrow rows of messages with the names of the application in the column `topic`."""
        index = rows.schema.get_field_index("topic")
        if not self.name or index < 0:
            return rows
        import pyarrow.compute

        pattern = f"^({RETRY_TOPIC_PREFIX}|{DLQ_TOPIC_PREFIX})?{re.escape(self._prefix)}"
        topics = pyarrow.compute.replace_substring_regex(rows.column(index), pattern, r"\1")
        return rows.set_column(index, rows.schema.field(index), topics)

    def wrap_choice(self, choose: Choose | None) -> Choose | None:
        """Return a function that chooses a queue of the cluster by calling `choose` with a translated route.

        A queue selector receives, and a given queue has, names of the application.
        """
        if choose is None or not self.name:
            return choose
        return lambda route: self.wrap_queue(choose(self._view(route)))

    def _view(self, route: TopicRoute) -> TopicRoute:
        """Return `route` with the application's name of its topic. The view is cached, as are its queues."""
        cached = self._views.get(route.topic)
        if cached is None or cached[0] is not route:
            cached = self._views[route.topic] = (route, replace(route, topic=self.unwrap(route.topic)))
        return cached[1]


Namespace.NONE = Namespace()


def _split(resource: str) -> tuple[str, str]:
    """Return the prefix of a retry topic or dead-letter topic, or an empty string, and the remaining name."""
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        if resource.startswith(prefix):
            return prefix, resource.removeprefix(prefix)
    return "", resource


def _is_system(resource: str) -> bool:
    return resource in SYSTEM_TOPICS or resource.startswith(SYSTEM_PREFIXES)
