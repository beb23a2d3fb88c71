"""ConsumeQueueTable: all consume queues of a store, loaded from disk and created on first use."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from store.common.logs import get_logger
from store.consumequeue.check import check_queue
from store.consumequeue.consume_queue import ConsumeQueue, QueueSnapshot
from store.consumequeue.queue_files import AssignedOffsets, QueueFiles
from store.consumequeue.unit import UNIT_BYTES
from store.disk.files import Descriptors, sync_directory
from store.disk.residency import Residency
from store.message.validate import LMQ_TOPIC_PREFIX
from store.store_errors import StoreError

_log = get_logger(__name__)
_LITE_QUEUE = re.compile(rf"{LMQ_TOPIC_PREFIX}\$[^$]+\$[^$]+")

REMOVED = "removed-"
"""Prefix of directories beside that of the queues: the files of deleted topics, to be deleted."""


class LoadedQueue(NamedTuple):
    """A queue loaded from disk, and the result of the check of its files.

    `damage` describes the damage after the queue's last valid unit, or is None.
    """

    queue: ConsumeQueue
    damage: str | None
    matches_snapshot: bool = False


class ConsumeQueueTable:
    """All consume queues of a store, by (topic, queue id)."""

    def __init__(
        self,
        root: Path,
        file_bytes: int,
        descriptors: Descriptors,
        make_queue: type[ConsumeQueue] = ConsumeQueue,
        residency: Residency | None = None,
    ) -> None:
        self.root = root
        self._root = str(root)
        self._make_queue = make_queue
        self.assigned = AssignedOffsets()
        self.files = QueueFiles(
            file_bytes, file_bytes // UNIT_BYTES, descriptors, [], residency or Residency(), self.assigned
        )
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_bytes: dict[tuple[bytes, int], ConsumeQueue] = {}
        self.gone: list[tuple[str, int]] = []
        """(topic, queue id) of each removed queue; the next checkpoint clears this list."""
        self.deleted: dict[str, int] = {}
        """The CommitLog offset of the last deletion of each topic that dispatch has deleted."""
        self.removed: list[Path] = []
        """The directories with the files of queues that dispatch has deleted; the owner deletes them."""

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    def __len__(self) -> int:
        return len(self._queues)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if it does not exist."""
        return self._queues.get((topic, queue_id))

    def first(self, topic: str, count: int) -> list[ConsumeQueue | None]:
        """Return the first `count` queues of a topic; None for each that does not exist."""
        find = self._queues.get
        return [find((topic, queue_id)) for queue_id in range(count)]

    def get(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; create it, without files, if it does not exist."""
        queue = self._queues.get((topic, queue_id))
        return queue if queue is not None else self._add(topic, queue_id)

    def get_all(self, topic: str, queue_ids: Sequence[int]) -> list[ConsumeQueue]:
        """Return the queues `queue_ids` of a topic; queues that do not exist are created, without files."""
        find = self._queues.get
        return [find((topic, queue_id)) or self._add(topic, queue_id) for queue_id in queue_ids]

    def get_by_bytes(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        """Return a queue, creating it if it does not exist; `topic` is the name as encoded in a record."""
        queue = self._by_bytes.get((topic, queue_id))
        if queue is None:
            queue = self._by_bytes[topic, queue_id] = self.get(topic.decode("utf-8", "replace"), queue_id)
        return queue

    def _add(self, topic: str, queue_id: int) -> ConsumeQueue:
        directory = f"{self._root}/{topic}/{queue_id}"
        queue = self._queues[topic, queue_id] = self._make_queue(topic, queue_id, directory, self.files)
        return queue

    def take_out_topic(self, topic: str) -> tuple[int, Path]:
        """Remove all queues of a topic from the table. Return how many, and the directory of their files.

        The caller must delete the directory. Raises OSError, and leaves the table unchanged then.
        """
        queues = [queue for queue in self if queue.topic == topic]
        directory, target = self.root / topic, self._unused_path()
        if queues and directory.is_dir():
            directory.rename(target)
        self.files.descriptors.drop_below(str(directory))
        self._forget(queues)
        return len(queues), target

    def delete_before(self, topic: str, physical_offset: int) -> None:
        """Delete the queues of a topic that was deleted by the record at CommitLog offset `physical_offset`.

        A queue with later records is kept: the topic was created again, and the queue has been dispatched
        before. The directory of the files is added to `removed`. If the files are read only, the queues
        become empty. Raises OSError, StoreError.
        """
        self.deleted[topic] = physical_offset
        queues = [queue for queue in self if queue.topic == topic]
        old = [queue for queue in queues if queue.end_physical_offset <= physical_offset]
        if self.files.descriptors.is_read_only:
            for queue in old:
                queue.start_again(0)
            return
        if old:
            _log.info("topic_queues_deleted", topic=topic, queues=len(old), position=physical_offset)
        if len(old) == len(queues):
            _, target = self.take_out_topic(topic)
        else:
            target = self._unused_path()
            for queue in old:
                self._take_out(queue, target)
        if target.is_dir():
            self.removed.append(target)

    def reserve_before(self, topic: str, queue_id: int, offset: int, physical_offset: int) -> None:
        """Let a queue end at queue offset `offset` at least, as it did at CommitLog offset `physical_offset`.

        The queue is shorter if the log files with its last records were deleted before this log began. A
        queue with later records has its end from these. Raises OSError.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or (queue.next_offset < offset and queue.end_physical_offset <= physical_offset):
            (queue or self.get(topic, queue_id)).reserve(offset)

    def _take_out(self, queue: ConsumeQueue, target: Path) -> None:
        """Remove one queue of a topic, with its directory moved into `target`, durably. Raises OSError."""
        directory = Path(queue.directory)
        if directory.is_dir():
            target.mkdir(exist_ok=True)
            directory.rename(target / directory.name)
            sync_directory(directory.parent)
        self.files.descriptors.drop_below(queue.directory)
        self._forget([queue])

    def _unused_path(self) -> Path:
        paths = (self.root.parent / f"{REMOVED}{number}" for number in count())
        return next(path for path in paths if not path.exists())

    def reset(self, *queues: ConsumeQueue) -> None:
        """Delete queues and their files, so that dispatch builds them again from the log."""
        for queue in queues:
            queue.remove()
        self._forget(queues)

    def remove_all(self) -> None:
        """Delete all queues, because the log is empty."""
        self.reset(*self)

    def _forget(self, queues: Collection[ConsumeQueue]) -> None:
        self.assigned.version += 1
        for queue in queues:
            del self._queues[queue.topic, queue.queue_id]
            self.gone.append((queue.topic, queue.queue_id))
        left = set(queues)
        self._by_bytes = {key: queue for key, queue in self._by_bytes.items() if queue not in left}

    # ---- load ----------------------------------------------------------------------------------------------

    def check_settings(self) -> None:
        """Check that the queues on disk were created with this store's settings.

        Raises StoreError if there are LMQ (light message queue) queues that are not lite topics, or if all
        files have the size for another value of `consume_queue_file_bytes`. A single file of another size is
        treated as damage and repaired by `load`.
        """
        sizes: set[int] = set()
        for topic, queue_id in self._on_disk():
            sizes |= {entry.stat().st_size for entry in os.scandir(f"{self._root}/{topic}/{queue_id}")}
            if self.files.file_bytes in sizes or len(sizes) > 1:
                return
        found_bytes = sizes.pop() if sizes else 0
        if found_bytes and found_bytes % UNIT_BYTES == 0:
            raise StoreError(
                f"all consume queue files have {found_bytes:,} bytes, "
                f"but consume_queue_file_bytes is {self.files.file_bytes:,}: "
                f"set it to {found_bytes}, the size that the store was created with",
                self.root,
            )

    def load(self, log_end: int, snapshots: dict[tuple[str, int], QueueSnapshot]) -> list[LoadedQueue]:
        """Load and check every queue on disk.

        `snapshots` has the states of the queues in the last checkpoint. A loaded queue ends before its first
        unit that is invalid or does not match the queue's snapshot.
        """
        return [
            self._load_queue(topic, queue_id, log_end, snapshots.get((topic, queue_id)))
            for topic, queue_id in self._on_disk()
        ]

    def add_all_on_disk(self) -> None:
        """Add all queues that have a directory to the table, without reading their files.

        Raises StoreError.
        """
        for topic, queue_id in self._on_disk():
            self.get(topic, queue_id)

    def _on_disk(self) -> Iterator[tuple[str, int]]:
        topics = sorted(os.scandir(self.root), key=lambda entry: entry.name) if self.root.is_dir() else []
        for topic in topics:
            if not topic.is_dir() or _LITE_QUEUE.fullmatch(topic.name):
                continue  # RocketMQ's queue of a lite topic, for which `store.lite` is used
            if topic.name.startswith(LMQ_TOPIC_PREFIX):
                raise StoreError(
                    "light message queues (LMQ) are not supported, except lite topics: delete them first",
                    topic.path,
                )
            numbers = [
                int(entry.name) for entry in os.scandir(topic.path) if entry.name.isdigit() and entry.is_dir()
            ]
            for number in sorted(numbers):
                yield topic.name, number

    def _load_queue(
        self, topic: str, queue_id: int, log_end: int, snapshot: QueueSnapshot | None
    ) -> LoadedQueue:
        queue = self.get(topic, queue_id)
        file_bytes = self.files.file_bytes
        damage: str | None = None
        times_ns: dict[int, int] = {}
        for entry in sorted(os.scandir(queue.directory), key=lambda entry: entry.name):
            status = entry.stat()
            if not entry.name.isdigit() or len(entry.name) != 20 or entry.is_dir():
                damage = damage or f"{entry.name} is not a consume queue file"
            elif status.st_size != file_bytes:
                damage = damage or f"{entry.name} has {status.st_size:,} bytes instead of {file_bytes:,}"
            elif int(entry.name) % file_bytes or (
                times_ns and int(entry.name) // UNIT_BYTES - queue.units_per_file not in times_ns
            ):
                damage = damage or f"a file before {entry.name} is missing"
            elif damage is None:
                times_ns[int(entry.name) // UNIT_BYTES] = status.st_mtime_ns
        if times_ns:
            found, damage_after = check_queue(queue, times_ns, log_end, snapshot)
            queue.set_extent(found, max(times_ns) + queue.units_per_file)
            damage = damage_after or damage
        matches_snapshot = snapshot is not None and snapshot.next_offset == queue.next_offset
        return LoadedQueue(queue, damage, matches_snapshot)

    def discard_invalid(self, loaded: LoadedQueue) -> None:
        """Truncate a loaded queue after its last valid unit, and delete unexpected files. Raises OSError."""
        queue, damage, _ = loaded
        if damage is not None:
            _log.warning("consume_queue_damaged", topic=queue.topic, queue_id=queue.queue_id, damage=damage)
            kept = {queue.file_path(offset) for offset in queue.file_offsets()}
            for entry in list(os.scandir(queue.directory)):
                if entry.path not in kept and not entry.is_dir():
                    queue.remove_file(entry.path)
        queue.truncate_to(queue.next_offset, queue.end_physical_offset)
