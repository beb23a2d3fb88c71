"""ConsumerOffsets: the committed offset and the generation of each queue, by consumer group.

A rebalancer assigns a queue to a new owner with a higher generation. A commit with a lower generation comes
from a former owner and is refused. Commits without a generation, from RocketMQ's own clients, are accepted.
Generations are stored in `raymqGenerations.json`, next to RocketMQ's `consumerOffset.json`, so that former
owners stay fenced after a restart of the broker.

An administrator's reset is pending until the group's next pull of the queue. Until then commits are ignored,
because their senders do not know of the reset (RocketMQ `useServerSideResetOffset`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from actors.bounds import AtLimit, Bound, Newest, Use
from actors.broker.core.metadata.acked_offsets import AckedOffsets
from actors.wire.codes import ResponseCode
from actors.wire.header import I32_MAX, I64_MAX
from actors.wire.raymq_requests import OffsetCommit, RefusedCommit
from actors.wire.remoting_errors import Refused
from store.message.validate import lite_topic_of
from store.metadata import ConsumerOffsetTable

CONSUMED: Final = Bound(
    "consumed_topics", 500_000, AtLimit.REFUSE, "Topics with committed offsets of a group, of all groups."
)
LITE_CONSUMED: Final = Bound(
    "consumed_lite_topics",
    4_000_000,
    AtLimit.REFUSE,
    "Lite topics with committed offsets of a group, of all groups.",
)
PULLED: Final = Bound(
    "pulled_queues", 500_000, AtLimit.EVICT, "Queues from which a group has pulled lately, of all groups."
)
NO_OFFSET = -1
_NONE: Final[Mapping[int, int]] = {}


class ConsumerOffsets:
    """The committed offsets, generations and pending resets of all groups on one broker."""

    def __init__(
        self,
        table: ConsumerOffsetTable,
        generations: dict[str, dict[int, int]] | None = None,
        *,
        is_replicated: bool = False,
    ) -> None:
        """Create the table.

        Args:
            table: the committed offsets.
            generations: like the offsets, it has the keys `topic@group`, then queue id.
            is_replicated: true if other replicas need each change (`HeldAcks`).
        """
        self.table = table
        self.generations = generations or {}
        self.changes = 0
        self.claims = 0
        """Increases with each generation that increases."""
        self.pulled: dict[tuple[str, str, int], int] = {}
        """The offset of the group's next pull, by topic, group and queue id."""
        self.claimed: Counter[tuple[str, str, int]] = Counter()
        """Claimed messages (POP) before the committed offset, by topic, group and queue id."""
        self.starting = Newest[tuple[str, str, int], None](PULLED)
        """The queues without a committed offset whose next pull shows where the group starts."""
        self._started = Newest[tuple[str, str, int], int](PULLED)
        self.resets: dict[tuple[str, str, int], int] = {}
        """The offset of a pending reset, by topic, group and queue id."""
        self.acked = AckedOffsets(is_replicated=is_replicated)
        """Popped messages after the committed offsets that are not popped again."""

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (
            CONSUMED.use(lambda: max(len(self.table.offsets), len(self.generations))),
            LITE_CONSUMED.use(lambda: len(self.table.lite)),
            PULLED.use(lambda: max(len(self.pulled), len(self.starting), len(self._started))),
        )

    def check_room(self, group: str, topic: str) -> None:
        """Raise Refused if the group has no offsets of the topic yet, and there are too many others."""
        is_lite = lite_topic_of(topic) is not None
        bound = LITE_CONSUMED if is_lite else CONSUMED
        for table in (self.table.lite,) if is_lite else (self.table.offsets, self.generations):
            if len(table) >= bound.limit and _key(topic, group) not in table:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {group!r} cannot consume topic {topic!r}: all groups together consume "
                    f"{len(table):,} topics, and the limit is {bound.limit:,}: delete groups or topics",
                )

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note the offset of the group's next pull of a queue."""
        key, pulled = (topic, group, queue_id), self.pulled
        if key not in pulled and len(pulled) >= PULLED.limit:
            del pulled[next(iter(pulled))]
        pulled[key] = offset

    def note_change(self) -> None:
        """Note that a table was changed in place: it is to be saved."""
        self.changes += 1

    def count_claimed(self, topic: str, group: str, queue_id: int, change: int) -> None:
        """Add `change` to the number of claimed messages before the committed offset of a queue."""
        key = (topic, group, queue_id)
        self.claimed[key] += change
        if not self.claimed[key]:
            del self.claimed[key]

    def note_start(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note a pull at `offset`: of a queue in `starting`, the group starts there."""
        key = (topic, group, queue_id)
        if key in self.starting:
            del self.starting[key]
            self._started[key] = offset

    def started(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return where the group started in a queue without a committed offset, or None if it is unknown."""
        return self._started.get((topic, group, queue_id))

    def consumed(self) -> Iterator[tuple[str, str]]:
        """Return topic and group of all offsets, generations and starts; some may be repeated."""
        for key in (*self.table.offsets, *self.generations):
            topic, _, group = key.partition("@")
            yield topic, group
        yield from {key[:2] for key in self._started}

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset of a queue, or None if the group has not committed any."""
        return self.table.get(_key(topic, group), _NONE).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset without a generation. Ignore the commit while a reset is pending.

        Raises Refused if the queue id or the offset is out of range.
        """
        _check(queue_id, offset)
        if self.resets and (topic, group, queue_id) in self.resets:
            return
        self.table.commit(group, topic, queue_id, offset)
        self.acked.note(topic, group)
        self.changes += 1

    def replace_all(self, table: ConsumerOffsetTable) -> None:
        """Take over all offsets of a master, in one step; the generations stay."""
        if (table.offsets, table.lite) != (self.table.offsets, self.table.lite):
            self.table.replace_all(table)
            self.changes += 1

    def replace_generations(self, generations: Mapping[str, Mapping[int, int]]) -> None:
        """Take over the generations of a master, in one step, except those that are lower than before.

        Consumers may have claimed a queue here while the master was not available.
        """
        known = self.generations
        found = {
            key: {queue: max(number, known.get(key, {}).get(queue, 0)) for queue, number in queues.items()}
            for key, queues in generations.items()
        }
        if found != known:
            self.generations = found
            self.changes += 1

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the offset at which the group resumes, and make the reset pending.

        Raises Refused if the queue id or the offset is out of range.
        """
        _check(queue_id, offset)
        self.table.commit(group, topic, queue_id, offset)
        self.acked.note(topic, group)
        self.resets[topic, group, queue_id] = offset
        self.acked.forget(lambda key: key == (topic, group, queue_id))
        self.changes += 1

    def forget_clients(self) -> None:
        """Forget what clients do here, because another replica serves them now: pulls and pending resets."""
        for table in (self.pulled, self.resets, self._started, self.starting):
            table.clear()

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Remove a pending reset at a pull of the queue. Return the reset's offset, or None without one."""
        return self.resets.pop((topic, group, queue_id), None)

    def commit_fenced(self, group: str, commits: Iterable[OffsetCommit]) -> list[RefusedCommit]:
        """Commit a member's offsets. Return the commits that are refused for an outdated generation."""
        refused = []
        for commit in commits:
            current = self.generation(group, commit.topic, commit.queue_id)
            if commit.generation < current:
                committed = self.query(group, commit.topic, commit.queue_id)
                refused.append(
                    RefusedCommit(
                        commit.topic, commit.queue_id, current, NO_OFFSET if committed is None else committed
                    )
                )
                continue
            self.claim(group, commit.topic, commit.queue_id, commit.generation)
            self.commit(group, commit.topic, commit.queue_id, commit.offset)
        return refused

    def claim(self, group: str, topic: str, queue_id: int, generation: int) -> None:
        """Increase a queue's generation, so that commits with a lower generation are refused.

        Raises Refused if the queue id or the generation is out of range.
        """
        _check(queue_id, generation)
        if generation > self.generation(group, topic, queue_id):
            self.generations.setdefault(_key(topic, group), {})[queue_id] = generation
            self.claims += 1
            self.changes += 1

    def generation(self, group: str, topic: str, queue_id: int) -> int:
        """Return the highest generation of a queue in a group, or 0 if it has no generation."""
        return self.generations.get(_key(topic, group), {}).get(queue_id, 0)

    def of_group(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's committed offsets in a topic, by queue id."""
        return dict(self.table.get(_key(topic, group), _NONE))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has committed offsets, sorted."""
        suffix = f"@{group}"
        return sorted(key.removesuffix(suffix) for key in self.table if key.endswith(suffix))

    def lite_topics(self) -> Iterator[tuple[tuple[str, str], str]]:
        """Yield (topic, name) of each lite topic in which a group has a committed offset, and the group."""
        for key in list(self.table.lite):
            queue, _, group = key.partition("@")
            if place := lite_topic_of(queue):
                yield place, group

    def lite_topics_of(self, group: str) -> list[str]:
        """Return the light message queues of the lite topics in which a group has committed offsets."""
        return [topic for topic in self.topics_of(group) if lite_topic_of(topic)]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets in a topic, sorted."""
        prefix = f"{topic}@"
        return sorted(key.removeprefix(prefix) for key in self.table if key.startswith(prefix))

    def remove_topic(self, topic: str) -> None:
        """Remove all offsets, generations and pending resets of a deleted topic."""
        self._remove(lambda key: key.startswith(f"{topic}@"))
        self._forget(lambda key: key[0] == topic)

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Remove the offsets and generations of a removed queue, which starts again at offset 0."""
        for table in (self.table.offsets, self.generations):
            for key, queues in table.items():
                if key.startswith(f"{topic}@") and queues.pop(queue_id, None) is not None:
                    self._removed(key)
        self._forget(lambda key: (key[0], key[2]) == (topic, queue_id))

    def remove(self, group: str, topic: str) -> None:
        """Remove the offsets and generations of a group in one topic, which starts again at offset 0."""
        key = _key(topic, group)
        for table in self._tables():
            if table.pop(key, None) is not None:
                self._removed(key)
        for queue in [each for each in self.resets if each[:2] == (topic, group)]:
            del self.resets[queue]

    def remove_group(self, group: str) -> None:
        """Remove all offsets, generations and pending resets of a deleted group."""
        self._remove(lambda key: key.endswith(f"@{group}"))
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_selected: Callable[[tuple[str, str, int]], bool]) -> None:
        for table in (self.pulled, self.resets, self._started, self.starting):
            for key in [key for key in table if is_selected(key)]:
                del table[key]
        self.acked.forget(is_selected)

    def _tables(self) -> Sequence[dict[str, Any]]:
        return self.table.offsets, self.table.lite, self.generations

    def _remove(self, is_selected: Callable[[str], bool]) -> None:
        for table in self._tables():
            for key in [key for key in table if is_selected(key)]:
                del table[key]
                self._removed(key)

    def _removed(self, key: str) -> None:
        topic, _, group = key.partition("@")
        self.acked.note(topic, group)
        self.changes += 1


def _check(queue_id: int, number: int) -> None:
    """Raise Refused for numbers beyond Java's int and long, which could not be saved."""
    if not (0 <= queue_id <= I32_MAX and number <= I64_MAX):
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"invalid queue id {queue_id} (0 to {I32_MAX}), offset or generation {number} (up to {I64_MAX})",
        )


def _key(topic: str, group: str) -> str:
    return f"{topic}@{group}"
