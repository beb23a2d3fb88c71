"""Topics: the topics of a broker, their automatic creation by sends, and RocketMQ's system topics."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.metadata.attributes import TOPIC_ATTRIBUTES, apply_attribute_changes, is_lite_topic
from actors.wire.bodies.routes import PERM_INHERIT, PERM_READ, PERM_WRITE
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.common.logs import get_logger
from store.message.message import MessageExt
from store.message.message_queue import MessageQueue
from store.message.topic_config import TopicConfig
from store.message.validate import (
    DLQ_TOPIC_PREFIX,
    LMQ_TOPIC_PREFIX,
    RETRY_TOPIC_PREFIX,
    check_topic,
    lite_topic_of,
)
from store.metadata import TopicConfigTable
from store.metadata.pieces import changed_names
from store.store_errors import MessageInvalid
from store.timer import timer_files

_log = get_logger(__name__)

NAME_CHARACTERS = frozenset(string.ascii_letters + string.digits + "%|_-")

PERM_READ_WRITE = PERM_READ | PERM_WRITE
QUEUES_MAX = 65_535
"""Limit of queues of one topic. RocketMQ allows 2³¹, but a loop over so many queues would never end."""

DEFAULT_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC = "BenchmarkTest"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TRANSACTION_HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANSACTION_OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANSACTION_CHECK_MAX_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC = timer_files.TIMER_TOPIC
SYSTEM_TOPIC_PREFIX = "rmq_sys_"
UNDELIVERED_TOPIC = f"{SYSTEM_TOPIC_PREFIX}raymq_undelivered"
"""Delayed messages that could not be delivered, with the reason (`sending.put_aside`)."""
REVIVE_QUEUES = 8
"""Queues of the revive topic (RocketMQ's reviveQueueNum)."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
_NOT_FOR_SENDERS = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANSACTION_HALF_TOPIC,
        TRANSACTION_OP_TOPIC,
        TRANSACTION_CHECK_MAX_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
KNOWN_SYSTEM_TOPICS = _NOT_FOR_SENDERS | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
"""RocketMQ's system topics (TopicValidator); this broker does not create all of them."""


def is_broker_only(name: str) -> bool:
    """Return True if only the broker itself writes to the topic.

    RocketMQ (TopicValidator) accepts sends to CHECKPOINT_TOPIC and to topics with SYSTEM_TOPIC_PREFIX. A
    client could thereby insert timer messages that no broker has checked.
    """
    return name in _NOT_FOR_SENDERS or name.startswith(SYSTEM_TOPIC_PREFIX)


def refuse_broker_only(name: str) -> None:
    """Raise Refused if clients may not send to the topic, because only the broker writes to it."""
    if is_broker_only(name):
        raise Refused(
            ResponseCode.NO_PERMISSION,
            f"Sending message to topic[{name[:200]}] is forbidden: only the broker writes to this system "
            "topic, send to another one",
        )


def has_records_of_all(name: str, cluster_name: str) -> bool:
    """Return True if a system topic has records of many users: of any topic, replies or traces.

    A permission for it has to name it; see `actors.access.policies`.
    """
    return is_broker_only(name) or name in (TRACE_TOPIC, reply_topic(cluster_name))


def reply_topic(cluster_name: str) -> str:
    """Return the name of the topic to which RocketMQ's clients send replies."""
    return f"{cluster_name}_REPLY_TOPIC"


def revive_topic(cluster_name: str) -> str:
    """Return the name of the topic with the stored claims of popped messages."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster_name}"


def system_topics(settings: BrokerSettings) -> list[TopicConfig]:
    """Return the topics that a RocketMQ broker creates at its first start."""
    inherited = PERM_READ | PERM_WRITE | PERM_INHERIT
    topics = [
        _topic(SELF_TEST_TOPIC, 1),
        _topic(BENCHMARK_TOPIC, 1024),
        _topic(settings.cluster_name, 16, inherited),
        _topic(settings.broker_name, 1, inherited),
        _topic(OFFSET_MOVED_TOPIC, 1),
        _topic(SCHEDULE_TOPIC, 18),
        _topic(reply_topic(settings.cluster_name), 1),
        _topic(revive_topic(settings.cluster_name), REVIVE_QUEUES),
        _topic(f"rmq_sys_SYNC_BROKER_MEMBER_{settings.broker_name}", 1),
        _topic(TRANSACTION_HALF_TOPIC, 1),
        _topic(TRANSACTION_OP_TOPIC, 1),
        _topic(TIMER_TOPIC, 1),
    ]
    if settings.auto_create_topics:
        topics.insert(1, _topic(DEFAULT_TOPIC, settings.default_topic_queues, inherited))
    return topics


def _topic(name: str, queues: int, perm: int = PERM_READ | PERM_WRITE) -> TopicConfig:
    return TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


class Topics:
    """The topics of one broker."""

    def __init__(
        self,
        settings: BrokerSettings,
        table: TopicConfigTable,
        on_change: Callable[[str], None],
        on_created: Callable[[str], None],
        *,
        recovered_to: int = 0,
    ) -> None:
        """Add the system topics that `table` lacks.

        Args:
            settings: the broker's settings.
            table: the existing topics.
            on_change: called with the name of a topic that was created, changed or deleted.
            on_created: called after `on_change` with the name of a topic that a send created.
            recovered_to: CommitLog offset up to which the log has messages of a killed broker, else 0.
        """
        self._recovered_to = recovered_to
        self._saved_ms = table.data_version.timestamp_ms
        self._recreated: set[str] = set()
        self._settings = settings
        self.table = table
        self._on_change = on_change
        self._on_created = on_created
        self.is_closed_to_senders = False
        self._in_removal: Counter[str] = Counter()
        self._is_advertised_writable = True
        self._system = {topic.topic_name for topic in system_topics(settings)}
        for topic in system_topics(settings):
            if topic.topic_name not in table.topics:
                table.put(topic)

    def find(self, name: str) -> TopicConfig | None:
        """Return the topic's settings, or None if it does not exist.

        As in RocketMQ, the light message queue of a lite topic is a topic with one queue.
        """
        topic = self.table.topics.get(name)
        if topic is None and (lite := lite_topic_of(name)) is not None:
            parent = self.table.topics.get(lite[0])
            if parent is not None and is_lite_topic(parent):
                return _topic(name, 1, parent.perm)
        return topic

    def get(self, name: str) -> TopicConfig:
        """Return the topic's settings. Raises Refused (TOPIC_NOT_EXIST)."""
        topic = self.find(name)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic {name!r} does not exist on broker {self._settings.broker_name}: create it first"
                + ("" if self._settings.auto_create_topics else ", or set auto_create_topics to true"),
            )
        return topic

    def for_sending(self, name: str, default_topic: str, default_queues: int) -> TopicConfig:
        """Return the settings of a topic that a client sends to.

        A missing topic is created as in RocketMQ, if that is allowed: it gets the permission of
        `default_topic`, and `default_queues` queues, but no more than `default_topic` has.

        As in RocketMQ, neither the topic's nor the broker's permission refuses a send: they only change the
        route, so that a broker is drained without an error for a producer that has not read the new route
        yet. Ordered topics are the exception: a queue would get messages after those of its new broker.

        Raises:
            Refused: the topic does not exist, is ordered and not writable, only the broker writes to it, or
                the broker is being drained.
        """
        refuse_broker_only(name)
        topic = self.table.topics.get(name)
        if topic is None:
            self._check_name(name)
            topic = self._create_for_sender(name, default_topic, default_queues) or self.get(name)
        if self.is_closed_to_senders:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"broker {self._settings.broker_name} is being drained: send to another broker",
            )
        if topic.order and not self._settings.permission & PERM_WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the permission of broker {self._settings.broker_name} is {self._settings.permission}, and "
                f"sends to the ordered topic {name!r} need 2 (write): send to another broker",
            )
        return topic

    def check_delivery(self, name: str, queue_id: int) -> None:
        """Check the queue to which a delayed message, timer message or half message is to be delivered.

        It was checked when the message was sent. But the topic may have changed since, and a store may have
        records that no broker has checked. An unknown topic passes.

        Raises:
            MessageInvalid: the name is invalid, only the broker writes to the topic, or it has no such queue.
        """
        check_topic(name)
        if is_broker_only(name):
            raise MessageInvalid(f"only the broker writes to the system topic {name!r}")
        topic = self.find(name)
        if topic is not None and not queue_id < max(topic.write_queue_nums, topic.read_queue_nums):
            raise MessageInvalid(
                f"queue {queue_id} of topic {name!r} does not exist: it has {topic.write_queue_nums} queues"
            )

    def prepare_delivery(self, message: MessageExt, name: str, queue_id: int) -> None:
        """Check the queue like `check_delivery`; an unknown topic is invalid too.

        Exception: a send that creates a topic may be acknowledged before the topic is saved. The topic of a
        message that a broker acknowledged shortly before it was killed is created again.

        Raises:
            MessageInvalid: the message cannot be delivered to this queue.
            Refused: the topic is being deleted.
        """
        may_be_unsaved = (
            message.commit_log_offset < self._recovered_to
            and message.store_timestamp >= self._saved_ms
            and queue_id < self._settings.default_topic_queues  # the limit of topics that a send creates
        )
        if may_be_unsaved and not is_broker_only(name):
            self.recreate(name, queue_id + 1)
        self.check_delivery(name, queue_id)
        if name not in self.table.topics:
            raise MessageInvalid(f"topic {name!r} does not exist")

    def for_pulling(self, name: str) -> TopicConfig:
        """Return the settings of a topic that a client reads. Raises Refused if it is not readable."""
        topic = self.get(name)
        if not topic.perm & PERM_READ & self._settings.permission:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"topic {name!r} is not readable: the topic's permission is {topic.perm}, the broker's is "
                f"{self._settings.permission}, and both need 4 (read)",
            )
        return topic

    def advertise(self, *, is_writable: bool) -> None:
        """Set whether routes may contain the write permission of topics.

        If `is_writable` is False, producers stop choosing this broker.
        """
        self._is_advertised_writable = is_writable
        self.register_again()

    def register_again(self) -> None:
        """Register all topics, because the permissions in their routes have changed."""
        # Nameservers ignore a registration whose data version they already know.
        self.table.touch()
        self._on_change("")

    def update_default_topic(self) -> None:
        """Create TBW102, or change its number of queues, after a change of the settings.

        Sends create topics from it, and get no more queues than it has.
        """
        if not self._settings.auto_create_topics:
            return
        queues = self._settings.default_topic_queues
        inherited = PERM_READ | PERM_WRITE | PERM_INHERIT
        default = self.find(DEFAULT_TOPIC) or _topic(DEFAULT_TOPIC, queues, inherited)
        self._put(replace(default, read_queue_nums=queues, write_queue_nums=queues))

    def to_register(self, names: Iterable[str] | None) -> dict[str, dict[str, Any]]:
        """Return these topics, or all, as JSON, with the permissions that routes shall have."""
        table = self.table.json_of(names)
        permission = self._settings.permission
        if not self._is_advertised_writable:
            permission &= ~PERM_WRITE
        if permission & PERM_READ_WRITE != PERM_READ_WRITE:
            return {name: {**topic, "perm": topic["perm"] & permission} for name, topic in table.items()}
        return table

    def update(self, topic: TopicConfig) -> None:
        """Create the topic or change its settings.

        Its `attributes` are changes to the existing ones (see `apply_attribute_changes`).

        Raises:
            Refused: the name, the settings or an attribute is not valid.
        """
        for _ in self.update_all([topic]):
            pass

    def update_all(self, topics: Iterable[TopicConfig]) -> Iterator[None]:
        """Create or change all topics, one in each step.

        Raises Refused if a topic is not valid; then no topic is changed.

        As in RocketMQ, a topic that already has these settings is not registered again.
        """
        checked = []
        for topic in topics:
            checked.append(self._with_changes(topic))
            yield
        for topic in checked:
            if topic != self.find(topic.topic_name):
                self._put(topic)
            yield

    def _with_changes(self, topic: TopicConfig) -> TopicConfig:
        try:
            check_topic(topic.topic_name)
        except MessageInvalid as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, _name_remark(topic.topic_name)) from error
        _check_kind(topic.topic_name)
        self._check_not_system(topic.topic_name)
        has_queues = max(topic.read_queue_nums, topic.write_queue_nums) <= QUEUES_MAX and (
            min(topic.read_queue_nums, topic.write_queue_nums) >= 0
        )
        if not has_queues or not 0 <= topic.perm <= 7:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic.topic_name!r} has {topic.read_queue_nums} read queues, "
                f"{topic.write_queue_nums} write queues and permission {topic.perm}: queues must be 0 to "
                f"{QUEUES_MAX:,}, the permission 0 to 7",
            )
        self._check_room(topic.topic_name)
        old = self.table.topics.get(topic.topic_name)
        current = None if old is None else old.attributes
        attributes = apply_attribute_changes(TOPIC_ATTRIBUTES, current, topic.attributes)
        return replace(topic, attributes=attributes)

    def replace_all(self, table: TopicConfigTable) -> list[str]:
        """Take over all topics of a master, in one step. Return the names of the topics that it lacks."""
        if table.data_version == self.table.data_version:
            return []
        before = self.table.replace_all(table)
        for name in changed_names(before, table.topics):
            self._on_change(name)
        return [name for name in before if name not in table.topics]

    def mark_ordered(self, names: Iterable[str]) -> None:
        """Mark topics as ordered. The names come from a nameserver's order configuration, as in RocketMQ."""
        for name in names:
            topic = self.table.topics.get(name)
            if topic is not None and not topic.order:
                self._put(replace(topic, order=True))

    def delete(self, name: str) -> None:
        """Delete the topic, if it exists. Raises Refused for a system topic and for a blank name."""
        if not name.strip():
            raise Refused(ResponseCode.INVALID_PARAMETER, _name_remark(""))
        self._check_not_system(name)
        if self.table.remove(name):
            _log.info("topic_deleted", topic=name)
            self._on_change(name)

    def begin_removal(self, name: str) -> None:
        """Refuse the creation of the topic until `end_removal`, because its queues are being removed.

        Messages that a client sends to a new topic of this name would be removed with the old queues.
        """
        self._in_removal[name] += 1

    def end_removal(self, name: str) -> None:
        """Allow the creation of the topic again, after the removal of its queues has succeeded or failed."""
        self._in_removal -= Counter([name])

    def ensure(self, name: str, queues: int) -> TopicConfig:
        """Return the settings of a topic. A missing topic, such as a retry topic, gets `queues` queues."""
        topic = self.table.topics.get(name)
        if topic is None:
            self._check_name(name)
            self._check_room(name)
            topic = _topic(name, min(queues, QUEUES_MAX))
            self._put(topic)
        return topic

    def recreate(self, name: str, queues: int) -> None:
        """Create a topic that was not saved before the broker was killed, with at least `queues` queues."""
        topic = self.table.topics.get(name)
        if topic is None:
            self._check_name(name)
            self._put(_topic(name, min(queues, QUEUES_MAX)))  # also above max_topics: it has messages
            self._recreated.add(name)
            _log.warning("topic_config_recreated", topic=name, queues=queues)
        elif name in self._recreated and topic.write_queue_nums < queues:
            self._put(replace(topic, read_queue_nums=queues, write_queue_nums=queues))

    def has_queue(self, queue: MessageQueue) -> bool:
        """Return True if the topic of a queue exists and has as many queues."""
        topic = self.table.topics.get(queue.topic)
        return topic is not None and 0 <= queue.queue_id < max(topic.read_queue_nums, topic.write_queue_nums)

    def system_names(self) -> list[str]:
        """Return the names of all system topics, sorted, including those that do not exist on this broker."""
        existing = {name for name in self.table.topics if self.is_system(name)}
        return sorted(existing | self._system | KNOWN_SYSTEM_TOPICS)

    def is_system(self, name: str) -> bool:
        """Return True if the name is that of a system topic."""
        return name in self._system or name in KNOWN_SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)

    def _create_for_sender(self, name: str, default_topic: str, default_queues: int) -> TopicConfig | None:
        default = self.table.topics.get(default_topic) if self._settings.auto_create_topics else None
        if default is None or not default.perm & PERM_INHERIT:
            is_of_group = name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
            return self.ensure(name, 1) if is_of_group else None
        queues = max(min(default_queues, default.write_queue_nums), 0)
        topic = _topic(name, queues, default.perm & ~PERM_INHERIT)
        self._check_room(name)
        self._put(topic)
        self._on_created(name)
        return topic

    def _check_room(self, name: str) -> None:
        """Raise Refused if the topic does not exist and the broker has as many topics as it may have."""
        if name not in self.table.topics and len(self.table.topics) >= self._settings.max_topics:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"topic {name[:100]!r} cannot be created: broker {self._settings.broker_name} has the "
                f"limit max_topics = {self._settings.max_topics:,}: delete unused topics, or raise it",
            )

    def _check_not_system(self, name: str) -> None:
        if self.is_system(name):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")

    def _put(self, topic: TopicConfig) -> None:
        if topic.topic_name in self._in_removal:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"topic {topic.topic_name!r} is being deleted: retry when its queues are removed",
            )
        self.table.put(topic)
        _log.info(
            "topic_config_changed",
            topic=topic.topic_name,
            queues=topic.write_queue_nums,
            permission=topic.perm,
        )
        self._on_change(topic.topic_name)

    @staticmethod
    def _check_name(name: str) -> None:
        try:
            check_topic(name)
        except MessageInvalid as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, error.remark) from error
        _check_kind(name)


def _check_kind(name: str) -> None:
    """Raise Refused for a light message queue (LMQ), which exists as a lite topic only."""
    if name.startswith(LMQ_TOPIC_PREFIX):
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"topic {name!r}: light message queues (LMQ) are not supported: choose another name",
        )


def _name_remark(name: str) -> str:
    """Return RocketMQ's error remark for an invalid topic name (TopicValidator)."""
    if not name:
        return "The specified topic is blank."
    if not set(name) <= NAME_CHARACTERS:
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return "The specified topic is longer than topic max length."
