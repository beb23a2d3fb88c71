"""Figures of the connected producers and consumers, by group, language and version of the client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from actors.broker.core.group.clients import Clients
from actors.broker.core.metric_labels import claim
from actors.host.figures import Figure, Kind, Sample
from actors.transport.connection import Connection
from store.message.validate import SYSTEM_GROUP_PREFIX

_MODES = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull", "CONSUME_POP": "pop"}
_CLIENT_LABELS = ("language", "version", "protocol_type")
_FIRST_VERSIONS = ((5, 413), (4, 213))
"""Major version and number of its release x.0.0 (RocketMQ MQVersion). Each release follows its snapshot."""


def connection_figures(clients: Clients[Connection]) -> Sequence[Figure]:
    """Return the figures of the clients of one broker."""

    def producers() -> Iterator[Sample]:
        found: Counter[tuple[str, ...]] = Counter()
        for group in clients.producer_groups():
            found += _by_client(clients.producer_connections(group))
        for labels, count in found.items():
            yield Sample(labels, count)

    def consumers() -> Iterator[Sample]:
        for group in list(clients.groups()):
            mode = _MODES.get(group.consume_type, group.consume_type.lower())
            is_system = claim(group.name.startswith(SYSTEM_GROUP_PREFIX))
            for labels, count in _by_client(group.connections()).items():
                yield Sample((*labels, group.name, mode, is_system), count)

    return (
        Figure(
            "producer_connections", Kind.GAUGE, "", producers, "Connections of producers.", _CLIENT_LABELS,
            metric="rocketmq_producer_connections",
        ),
        Figure(
            "consumer_connections", Kind.GAUGE, "", consumers, "Connections of the members of a group.",
            (*_CLIENT_LABELS, "consumer_group", "consume_mode", "is_system"),
            metric="rocketmq_consumer_connections",
        ),
    )  # fmt: skip


def _by_client(connections: Iterable[Connection]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for connection in connections:
        attributes = connection.attributes
        language = (attributes.language or "other").lower()
        found[language, version_name(attributes.version), "remoting"] += 1
    return found


def version_name(number: int) -> str:
    """Return RocketMQ's name of a client version, such as `v5_3_3`, or the number of an old version."""
    for major, first in _FIRST_VERSIONS:
        if number >= first - 1:
            release, is_snapshot = (number - first + 1) // 2, (number - first) % 2 == 1
            minor, patch = divmod(release, 10)
            return f"v{major}_{minor}_{patch}{'_snapshot' if is_snapshot else ''}"
    return str(number)
