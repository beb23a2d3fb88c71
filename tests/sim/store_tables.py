"""StoreTables: the topics of simulated clients, which a real MetaLog replicates, and where their queues end.

value 0 … 5   6 … 11   12 … 17   18 … 23       8: Topic2 is deleted, 17: Topic0
Topic0        Topic1   Topic2    Topic0        all records of a topic may expire before its next one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from actors.broker.core.table_names import TOPIC
from actors.broker.replication.raft.group_tables import GroupTables, save_tables
from actors.broker.replication.raft.meta_log import MetaLog
from store.message_store import MessageStore
from tests.sim.checks import Violation
from tests.sim.model_log import Token

QUEUES = 3
SPARE = "Spare"
Queue = tuple[str, int]


def topic_of(value: int) -> str:
    """Return the topic of a value: for a while a topic gets no records, and all that it has may expire."""
    return f"Topic{value // 6 % 3}"


class SimTopics:
    """The table of topics of a simulated replica, with the interface of Kind."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.changes = 0

    def all(self) -> dict[str, Any]:
        return dict(self.names)

    def get(self, name: str) -> Any:
        return self.names.get(name)

    def put(self, name: str, value: Any) -> None:
        self.changes += 1
        if value is None:
            self.names.pop(name, None)
        else:
            self.names[name] = value

    def version(self) -> object:
        return self.changes


class StoreTables:
    """The tables of one replica while its process runs."""

    def __init__(self, store: MessageStore, confirmed: GroupTables, leads: Callable[[], bool]) -> None:
        self._store = store
        self._topics = SimTopics()
        self._confirmed = confirmed
        self._meta = MetaLog(store, confirmed, {TOPIC: self._topics}, leads)
        self._saved = confirmed.full_from

    def topic_for(self, value: int) -> str:
        """Return the topic of the leader's next message, after it was created, and another one deleted."""
        if value % 9 == 8:
            self._delete(topic_of(value + 6))
        topic = topic_of(value)
        if topic in self._deleting:  # a leader appends nothing to it
            topic = SPARE
        if topic not in self._topics.names:
            self._topics.put(topic, {"queues": QUEUES})
            self._meta.changed(TOPIC, topic)
        return topic

    @property
    def _deleting(self) -> set[str]:
        """The topics whose deletion is not dispatched yet."""
        with_queues = {topic for topic, _ in self._store.queues() if topic.startswith("Topic")}
        return with_queues - self._topics.names.keys()

    def _delete(self, topic: str) -> None:
        if topic in self._topics.names:
            self._topics.put(topic, None)
            self._meta.changed(TOPIC, topic)

    def take_over(self) -> None:
        self._store.dispatch_now()
        self._meta.take_over()

    def resign(self) -> None:
        self._meta.resign()

    def keep(self) -> None:
        """Write all tables again if their records may be deleted soon, as a broker does each second."""
        self._meta._write_full_if_due()  # noqa: SLF001

    def save(self) -> None:
        """Save the confirmed entries when the log has another full set."""
        if self._confirmed.full_from != self._saved:
            self._saved = self._confirmed.full_from
            save_tables(self._store.root, self._confirmed.content())

    def queue_ends(self) -> dict[Queue, int]:
        """Return the ends of the queues of clients, as far as they are dispatched."""
        queues = self._store.queues()
        return {each: self._store.max_offset(*each) for each in queues if not each[0].startswith("rmq_sys")}


def ends_of_queues(chosen: Mapping[int, Token]) -> dict[Queue, int]:
    """Return where the queues of clients end after all confirmed entries, which are given by their end.

    Raises Violation if a record does not have the queue offset after that of the record before it.
    """
    ends: dict[Queue, int] = {}
    for _, token in sorted(chosen.items()):
        _, value, *places = token.entry
        if isinstance(value, str):
            for queue in [each for each in ends if each[0] in value.split(",")]:
                del ends[queue]
        for topic, queue_id, offset in places:
            if offset != ends.get((topic, queue_id), 0):
                raise Violation(
                    f"{token} is record {offset} of a queue with {ends.get((topic, queue_id), 0)}"
                )
            ends[topic, queue_id] = offset + 1
    return ends
