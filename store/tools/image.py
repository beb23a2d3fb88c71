"""A read-only image of a store as it would be after recovery.

It needs no settings, takes no lock and writes nothing: log and index files are mapped copy-on-write, and
consume queue units that recovery would append are kept in memory.
"""

from collections.abc import Sequence
from pathlib import Path

from store.commitlog.commit_log import CommitLog
from store.commitlog.log_paths import LogPaths
from store.commitlog.positions import Positions
from store.consumequeue.consume_queue import ConsumeQueue
from store.consumequeue.queue_files import QueueFiles
from store.consumequeue.table import ConsumeQueueTable
from store.consumequeue.unit import FILLER, UNIT_BYTES
from store.disk.files import Descriptors
from store.dispatch.dispatcher import Dispatcher, Mode
from store.dispatch.queue_sink import ConsumeQueueSink
from store.index.index_file import IndexFile
from store.kernels import walk
from store.kernels.java_hash import plain_key_hash
from store.ownership.identity import AbortFile, read_name, refuse_foreign_kinds
from store.reading.queries import has_key
from store.recovery.checkpoint import StoreCheckpoint
from store.recovery.opening import CHECKPOINT, CONSUME_QUEUE, INDEX
from store.recovery.summary import read_summary
from store.recovery.tail import Tail, find_tail
from store.store_errors import StoreError
from store.store_settings import StoreSettings
from store.tools.layout import find_sizes, log_directories, require_directory

_CANDIDATES_MAX = 1 << 20
_FOREVER_MS = 1 << 62


class ImageQueue(ConsumeQueue):
    """A consume queue whose new units are kept in memory; `read_units` reads from files and memory.

    The files of the queue are not changed.
    """

    __slots__ = ("_extra", "_extra_from")

    def __init__(self, topic: str, queue_id: int, directory: str, files: QueueFiles) -> None:
        super().__init__(topic, queue_id, directory, files)
        self._extra = bytearray()
        self._extra_from = -1  # the first offset whose unit is in memory; −1 if all are in files

    def append_units(self, units: memoryview, end_physical_offset: int) -> None:
        """Append units in memory only."""
        if self._extra_from < 0:
            self._extra_from = self.next_offset
        self._extra += units
        self.next_offset += len(units) // UNIT_BYTES
        self.end_physical_offset = end_physical_offset

    def start_at(self, offset: int) -> None:
        """Make an empty queue begin at queue offset `offset`."""
        self.first_offset = self.next_offset = self.min_offset = self._extra_from = offset
        self._extra.clear()

    def fill_to(self, offset: int) -> None:
        """Append filler units before queue offset `offset`, for messages whose records are lost."""
        self.append_units(memoryview(FILLER * (offset - self.next_offset)), self.end_physical_offset)

    def truncate_to(self, next_offset: int, end_physical_offset: int) -> None:
        """Remove the units from queue offset `next_offset` on; the files are not changed."""
        if self._extra_from < 0 or next_offset < self._extra_from:
            self._extra_from = next_offset
        del self._extra[(next_offset - self._extra_from) * UNIT_BYTES :]
        self.next_offset = next_offset
        self.end_physical_offset = end_physical_offset

    def read_units(self, offset: int, count: int) -> bytes:
        """Return up to `count` units from queue offset `offset` on, from one file or from memory."""
        if self._extra_from < 0:
            return super().read_units(offset, count)
        if offset < self._extra_from:
            return super().read_units(offset, min(count, self._extra_from - offset))
        start = (offset - self._extra_from) * UNIT_BYTES
        return bytes(self._extra[start : start + count * UNIT_BYTES])


class StoreImage:
    """Read access to CommitLog, consume queues and index of a store that no broker has to open."""

    def __init__(self, root: Path, log_paths: Sequence[Path] = ()) -> None:
        """Find the end of the CommitLog of the store at `root`.

        `log_paths` are the directories of the log, if they are neither in raymq.json nor `commitlog`.
        Raises StoreError if there is no store, or a store of an unsupported kind.
        """
        require_directory(root)
        name = read_name(root)
        log_paths = log_directories(root, log_paths, name)
        refuse_foreign_kinds(root)
        self.root = root
        self._sizes = find_sizes(root, log_paths, name)
        summary = read_summary(root, name.store_id) if name is not None else None
        notes = summary.index_files or [] if summary is not None else []
        self._index_notes = {note.name: note for note in notes}
        self._is_ours = name is not None
        self.log = CommitLog(
            LogPaths(root, log_paths), self._sizes.log_file_bytes, Positions(), read_only=True
        )
        descriptors = Descriptors(64, read_only=True)
        self._descriptors = descriptors
        self.queues = ConsumeQueueTable(
            root / CONSUME_QUEUE, self._sizes.queue_file_bytes, descriptors, ImageQueue
        )
        settings = StoreSettings()
        self._dispatcher = Dispatcher(
            self.log,
            [ConsumeQueueSink(self.log, self.queues)],
            settings.delay_levels_ms(),
            self._sizes.log_file_bytes,
        )
        log_min = self.log.bases[0] if self.log.bases else 0
        confirmed = summary.position if summary is not None else 0
        self.tail: Tail = find_tail(
            self.log, log_min, check_crc=True, is_ours=self._is_ours, confirmed=confirmed
        )
        self.log.positions.set_all(log_min, self.tail.position)

    def load_queues(self) -> list[ConsumeQueue]:
        """Return all consume queues by topic and queue id.

        Units that their files lack are built from the log.
        """
        positions = self.log.positions
        self.queues.load(positions.written, {})
        self._dispatcher.run(positions.min, positions.written, Mode.RECOVERY)
        for queue in self.queues:
            queue.correct_min_offset(positions.min)
        return sorted(self.queues, key=lambda queue: (queue.topic, queue.queue_id))

    def query_by_key(self, topic: str, key: str) -> list[int]:
        """Return the CommitLog offsets of the records of `topic` with this key, in ascending order.

        Searches the index, and then reads the part of the log that is not indexed.
        """
        key_hash = plain_key_hash(f"{topic}#{key}".encode())
        candidates: set[int] = set()
        scan_from = self.log.positions.min
        for path in sorted((self.root / INDEX).glob("*")):
            file = self._valid_index(path)
            if file is None:
                break
            candidates.update(file.select(key_hash, 0, _FOREVER_MS, _CANDIDATES_MAX))
            scan_from = max(scan_from, file.end_physical_offset)
        if not self._is_ours and AbortFile(self.root).exists:
            # As RocketMQ's recovery: it keeps full index files and dispatches the log again from here.
            scan_from = self._abnormal_start()
        candidates.update(self._dispatcher.find_hash(scan_from, self.log.positions.written, key_hash))
        return [offset for offset in sorted(candidates) if self._matches(offset, topic, key)]

    def _valid_index(self, path: Path) -> IndexFile | None:
        try:
            file = IndexFile(path, self._sizes.index_slots, self._sizes.index_entries, copy_on_write=True)
        except StoreError:
            return None
        note = self._index_notes.get(path.name)
        if note is not None:
            return file if file.restore(note) is None else None
        if AbortFile(self.root).exists:
            if not self._is_ours and file.end_timestamp > self._checkpoint().index_msg_timestamp:
                return None
            file.cut_at(file.end_physical_offset)
        return file if file.is_valid() else None

    def _checkpoint(self) -> StoreCheckpoint:
        return StoreCheckpoint.read(self.root / CHECKPOINT)

    def _abnormal_start(self) -> int:
        """Return the base (first CommitLog offset) of the log file that RocketMQ reads first after a crash.

        See docs/store-format.md#recovery-start.
        """
        durable_ms = self._checkpoint().min_timestamp
        for base in reversed(self.log.bases):
            file = self.log.file_at(base)
            if walk.check_record_at(file.array, 0, file.size_bytes, base, False) > 0:
                stored_ms = int(walk.store_timestamp_at(file.array, 0))
                if 0 < stored_ms <= durable_ms:
                    return base
        return self.log.positions.min

    def _matches(self, offset: int, topic: str, key: str) -> bool:
        try:
            return has_key(self.log.record_at(offset), topic, key)
        except StoreError:
            return False

    def close(self) -> None:
        """Close all files."""
        self.log.close()
        self._descriptors.close()
