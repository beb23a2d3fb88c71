"""ConsumerOffsets: the committed offset of each group and queue, and the generation of its last commit.

A rebalancer moves a queue from one member to another under a new generation. A commit of an older generation
comes from a member that has lost the queue, and is refused; commits without a generation (RocketMQ's own
clients) are accepted. The generations have a file beside RocketMQ's `consumerOffset.json`, so that a former
owner stays fenced after a restart of the broker.

A reset by an administrator is pending until the group's next pull of the queue; until then commits are
ignored, because their senders do not know of the reset (RocketMQ `useServerSideResetOffset`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from actors.remoting.codes import ResponseCode
from actors.remoting.header import I32_MAX, I64_MAX
from actors.remoting.raymq_requests import OffsetCommit, RefusedCommit
from actors.remoting.remoting_errors import Refused
from store.metadata import ConsumerOffsetTable

NO_OFFSET = -1


class ConsumerOffsets:
    """The offsets of all groups on one broker."""

    def __init__(
        self, table: ConsumerOffsetTable, generations: dict[str, dict[int, int]] | None = None
    ) -> None:
        """`generations` is keyed as the offsets are: `topic@group`, then queue id."""
        self.table = table
        self.generations = generations or {}
        self.changes = 0
        self.pulled: dict[tuple[str, str, int], int] = {}
        """By topic, group and queue: where the group's next pull begins."""
        self.resets: dict[tuple[str, str, int], int] = {}
        """By topic, group and queue: the offset of a pending reset."""

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, None without one."""
        return self.table.offsets.get(_key(topic, group), {}).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit an offset without a generation. Raises Refused."""
        _check(queue_id, offset)
        if self.resets and (topic, group, queue_id) in self.resets:
            return
        self.table.commit(group, topic, queue_id, offset)
        self.changes += 1

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset the offset at which the group resumes. Raises Refused."""
        _check(queue_id, offset)
        self.table.commit(group, topic, queue_id, offset)
        self.resets[topic, group, queue_id] = offset
        self.changes += 1

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return and remove the pending reset, for the first pull after it."""
        return self.resets.pop((topic, group, queue_id), None)

    def commit_fenced(self, group: str, commits: Iterable[OffsetCommit]) -> list[RefusedCommit]:
        """Commit a member's offsets, and return the commits of older generations, which are refused."""
        refused = []
        for commit in commits:
            current = self.generation(group, commit.topic, commit.queue_id)
            if commit.generation < current:
                stands = self.query(group, commit.topic, commit.queue_id)
                refused.append(
                    RefusedCommit(
                        commit.topic, commit.queue_id, current, NO_OFFSET if stands is None else stands
                    )
                )
                continue
            self.claim(group, commit.topic, commit.queue_id, commit.generation)
            self.commit(group, commit.topic, commit.queue_id, commit.offset)
        return refused

    def claim(self, group: str, topic: str, queue_id: int, generation: int) -> None:
        """Fence commits of generations before this one. Raises Refused."""
        _check(queue_id, generation)
        if generation > self.generation(group, topic, queue_id):
            self.generations.setdefault(_key(topic, group), {})[queue_id] = generation
            self.changes += 1

    def generation(self, group: str, topic: str, queue_id: int) -> int:
        """Return the newest generation of a queue of a group, 0 without one."""
        return self.generations.get(_key(topic, group), {}).get(queue_id, 0)

    def of_group(self, group: str, topic: str) -> dict[int, int]:
        """Return the offsets of a group in a topic, by queue."""
        return dict(self.table.offsets.get(_key(topic, group), {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics that a group has committed offsets of."""
        suffix = f"@{group}"
        return sorted(key.removesuffix(suffix) for key in self.table.offsets if key.endswith(suffix))

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics that each group has committed offsets of."""
        found: dict[str, list[str]] = {}
        for key in sorted(self.table.offsets):
            topic, _, group = key.partition("@")
            found.setdefault(group, []).append(topic)
        return found

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed offsets of a topic."""
        prefix = f"{topic}@"
        return sorted(key.removeprefix(prefix) for key in self.table.offsets if key.startswith(prefix))

    def remove_topic(self, topic: str) -> None:
        """Remove all offsets of a deleted topic."""
        self._remove(lambda key: key.startswith(f"{topic}@"))
        _drop(self.pulled, lambda key: key[0] == topic)
        _drop(self.resets, lambda key: key[0] == topic)

    def remove_queue(self, topic: str, queue_id: int) -> None:
        """Remove all offsets of a removed queue, which begins at 0 again."""
        for table in (self.table.offsets, self.generations):
            for key, queues in table.items():
                if key.startswith(f"{topic}@") and queues.pop(queue_id, None) is not None:
                    self.changes += 1

    def remove_group(self, group: str) -> None:
        """Remove all offsets of a deleted group."""
        self._remove(lambda key: key.endswith(f"@{group}"))
        _drop(self.pulled, lambda key: key[1] == group)
        _drop(self.resets, lambda key: key[1] == group)

    def _remove(self, is_meant: Callable[[str], bool]) -> None:
        for table in (self.table.offsets, self.generations):
            for key in [key for key in table if is_meant(key)]:
                del table[key]
                self.changes += 1


def _drop(table: dict[tuple[str, str, int], int], is_meant: Callable[[tuple[str, str, int]], bool]) -> None:
    for key in [key for key in table if is_meant(key)]:
        del table[key]


def _check(queue_id: int, number: int) -> None:
    """Raise Refused for numbers over Java's int and long, which could not be saved."""
    if not (0 <= queue_id <= I32_MAX and number <= I64_MAX):
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            "a queue id is a number of 31 bits, an offset and a generation are one of 63 at most",
        )


def _key(topic: str, group: str) -> str:
    return f"{topic}@{group}"
