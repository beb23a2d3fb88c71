"""Views of topics: their kind, settings on each broker, and queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store.message.validate import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

if TYPE_CHECKING:
    from cluster.client import Admin
    from store.message.topic_config import TopicConfig

NEW_QUEUES = 4
_PARSED_PERMS = {"r": 4, "w": 2, "rw": 6, "wr": 6, "none": 0, "0": 0, "2": 2, "4": 4, "6": 6}
_PERMS = {0: "none", 2: "w", 4: "r", 6: "rw"}


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic on all of its brokers.

    Attributes:
        kind: "normal", "system", "retry" or "dead letters".
        queues: Number of write queues on all brokers.
        perm: Permission: r, w, rw or none.
    """

    topic: str
    kind: str
    queues: int
    perm: str
    brokers: Sequence[str]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic on one broker."""

    broker: str
    read_queues: int
    write_queues: int
    perm: str
    order: bool
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic: its settings on each broker, and the groups that consume it."""

    topic: str
    brokers: Sequence[TopicSettings]
    groups: Sequence[str]


@dataclass(frozen=True, slots=True)
class StoredRange:
    """The stored messages of one queue: offsets [min_offset, max_offset).

    `last_ms` is the store time of the newest message in milliseconds since the epoch, or None.
    """

    broker: str
    queue: int
    min_offset: int
    max_offset: int
    messages: int
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class TopicProgress:
    """The queues of a topic, and its messages stored per second in the last minute."""

    topic: str
    put_tps: float
    queues: Sequence[StoredRange]

    @property
    def messages(self) -> int:
        """The number of stored messages."""
        return sum(queue.messages for queue in self.queues)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The settings that a topic would get on each broker.

    Attributes:
        before: Its settings now, with the most queues of any broker; None for a new topic.
        perm: Permission bits: 4 read, 2 write.
    """

    topic: str
    before: TopicConfig | None
    queues: int
    read_queues: int
    perm: int
    order: bool


def plan_topic(
    admin: Admin,
    topic: str,
    *,
    queues: int | None = None,
    read_queues: int | None = None,
    perm: str | None = None,
    order: bool | None = None,
) -> TopicPlan:
    """Return the settings of a new or changed topic; a value that is None stays as it is.

    Raises `ClientError`; ConfigInvalid for an unknown permission.
    """
    # Imported here, because the command line imports views before it needs a client.
    from store.message.topic_config import TopicConfig

    before = _settings_of(admin, topic)
    current = before or TopicConfig(topic, read_queue_nums=NEW_QUEUES, write_queue_nums=NEW_QUEUES)
    wanted = queues or current.write_queue_nums
    if read_queues is None:
        read_queues = current.read_queue_nums if queues is None else wanted
    return TopicPlan(
        topic,
        before,
        wanted,
        read_queues,
        current.perm & 6 if perm is None else parse_perm(perm),
        current.order if order is None else order,
    )


def _settings_of(admin: Admin, topic: str) -> TopicConfig | None:
    # Imported here, because the command line imports views before it needs a client.
    from msgspec.structs import replace

    from cluster.client.errors import TopicNotFound

    try:
        configs = list(admin.topic_configs(topic).values())
    except TopicNotFound:
        return None
    return replace(
        configs[0],
        read_queue_nums=max(config.read_queue_nums for config in configs),
        write_queue_nums=max(config.write_queue_nums for config in configs),
    )


def parse_perm(text: str) -> int:
    """Return the permission bits of r, w, rw or none. Raises ConfigInvalid."""
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ConfigInvalid

    found = _PARSED_PERMS.get(text.lower())
    if found is None:
        raise ConfigInvalid(f"{text!r} is not a permission: use r, w, rw or none")
    return found


def perm_name(perm: int) -> str:
    """Return the name of permission bits: r, w, rw or none."""
    return _PERMS.get(perm & 6, str(perm))


def list_topics(admin: Admin) -> list[TopicSummary]:
    """Return all topics, also those of the system, by name. Raises `ClientError`."""
    system = set(admin.system_topics())
    found: dict[str, TopicSummary] = {}
    for broker in admin.brokers():
        for name, config in admin.broker_topics(broker).items():
            before = found.get(name)
            found[name] = TopicSummary(
                name,
                _kind(name, system),
                config.write_queue_nums + (before.queues if before else 0),
                perm_name(config.perm),
                [*(before.brokers if before else ()), broker],
            )
    return [found[name] for name in sorted(found)]


def topic_description(admin: Admin, topic: str) -> TopicDetails:
    """Return the settings of a topic and its groups. Raises `ClientError`."""
    rows = [
        TopicSettings(
            broker,
            config.read_queue_nums,
            config.write_queue_nums,
            perm_name(config.perm),
            config.order,
            dict(config.attributes),
        )
        for broker, config in admin.topic_configs(topic).items()
    ]
    return TopicDetails(topic, rows, admin.groups_of_topic(topic))


def topic_progress(admin: Admin, topic: str) -> TopicProgress:
    """Return the offsets of each queue of a topic. Raises `ClientError`."""
    stats = admin.topic_stats(topic)
    queues = [
        StoredRange(
            queue.broker_name,
            queue.queue_id,
            offset.min_offset,
            offset.max_offset,
            offset.max_offset - offset.min_offset,
            offset.last_update_timestamp or None,
        )
        for queue, offset in stats.offsets.items()
    ]
    return TopicProgress(topic, stats.put_tps, queues)


def _kind(name: str, system: set[str]) -> str:
    if name.startswith(RETRY_TOPIC_PREFIX):
        return "retry"
    if name.startswith(DLQ_TOPIC_PREFIX):
        return "dead letters"
    return "system" if name in system else "normal"
