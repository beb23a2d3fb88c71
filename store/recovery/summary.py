"""What the derived files should hold, as far as it was noted: `raymq.derived` in the store's root.

Written at every checkpoint and at the end. It is a lower bound, valid however the store ended: whatever of it
is missing at the next start has been lost and is built again from the log. The file itself can be deleted at
any time; then all derived files are compared by one walk over the log. One wrong digit in it would hide
records for good, so its first line is the CRC-32 of the rest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from store.commitlog.holes import Hole
from store.consumequeue.consume_queue import ConsumeQueue, QueueSnapshot
from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import SYNC_ONE_BY_ONE_MAX
from store.index.index_file import IndexSnapshot
from store.logs import get_logger
from store.message.crc import running_crc

_log = get_logger(__name__)

_FILE = "raymq.derived"
_VERSION = 2


@dataclass(frozen=True)
class DerivedSummary:
    """Everything before `position` was dispatched; `last_record` is the last one's place, −1 for none.

    `queues` and `index_files` are what was there then; no index files are known of a store without an index.
    `holes` are those of the log, as far as they have been found.
    """

    store_id: str
    position: int
    last_record: int
    min_offset: int
    queues: dict[tuple[str, int], QueueSnapshot]
    index_files: list[IndexSnapshot] | None
    holes: tuple[Hole, ...] = ()


class QueueSnapshots:
    """The notes of all queues as they stand in the file, kept up to date by those queues that change."""

    def __init__(self, queues: ConsumeQueueTable) -> None:
        self._queues = queues
        self._by_topic: dict[str, dict[str, orjson.Fragment]] = {}
        self._unsettled: list[ConsumeQueue] = []
        self._left: list[ConsumeQueue] = list(queues)
        self.dirty_paths: list[str] = []
        """Files that the notes speak of and that are not durable yet; of so many that all files are to be
        synced (SYNC_ONE_BY_ONE_MAX), only some."""

    @property
    def has_unsettled(self) -> bool:
        """Whether some notes lack times: of files that had just changed when they were noted."""
        return bool(self._unsettled)

    def begin(self) -> None:
        """Start to note what has changed since the last time; `resume` does it."""
        for topic, queue_id in self._queues.gone:
            notes = self._by_topic.get(topic, {})
            notes.pop(str(queue_id), None)
            if not notes:
                self._by_topic.pop(topic, None)
        self._queues.gone.clear()
        changed = self._queues.files.changed
        self._left += changed
        self._left += [queue for queue in self._unsettled if not queue.has_changed]
        self._unsettled = []
        changed.clear()

    def resume(self, count: int) -> bool:
        """Note up to `count` queues; returns whether all are done."""
        for queue in self._left[:count]:
            self._take(queue, is_last=False)
        del self._left[:count]
        return not self._left

    def finish(self) -> None:
        """Note all that are left, for the last time as far as is known."""
        for queue in self._left:
            self._take(queue, is_last=True)
        self._left = []

    def _take(self, queue: ConsumeQueue, *, is_last: bool) -> None:
        if self._queues.find(queue.topic, queue.queue_id) is not queue:
            return  # deleted since
        if len(self.dirty_paths) <= SYNC_ONE_BY_ONE_MAX:  # with more than that, all files are synced
            self.dirty_paths += queue.dirty_paths()
        note = queue.note(is_last=is_last)
        notes = self._by_topic.setdefault(queue.topic, {})
        if note.next_offset:
            notes[str(queue.queue_id)] = orjson.Fragment(orjson.dumps(tuple(note)))
        else:
            notes.pop(str(queue.queue_id), None)
        if 0 in note.times_ns:
            self._unsettled.append(queue)

    def encode(self, summary: DerivedSummary) -> bytes:
        """The file's content: these queues, and all else as in `summary`."""
        index_files = summary.index_files
        content = orjson.dumps(
            {
                "version": _VERSION,
                "storeId": summary.store_id,
                "position": summary.position,
                "lastRecord": summary.last_record,
                "minOffset": summary.min_offset,
                "indexFiles": None if index_files is None else [tuple(note) for note in index_files],
                "queues": self._by_topic,
                "holes": [tuple(hole) for hole in summary.holes],
            }
        )
        return b"%08x\n%b" % (running_crc(content), content)


def summary_path(root: Path) -> Path:
    """Where a store keeps its summary."""
    return root / _FILE


def read_summary(root: Path, store_id: str) -> DerivedSummary | None:
    """The summary of this very store; None when there is none that can be used."""
    path = summary_path(root)
    try:
        crc, _, text = path.read_bytes().partition(b"\n")
        if crc != b"%08x" % running_crc(text):
            raise ValueError("its CRC is another one")  # noqa: TRY301 - all that is wrong with it ends below
        content: Any = orjson.loads(text)
        if content["version"] != _VERSION or content["storeId"] != store_id:
            return None
        queues = {
            (topic, int(queue_id)): QueueSnapshot._make(note)
            for topic, by_id in content["queues"].items()
            for queue_id, note in by_id.items()
        }
        noted = content["indexFiles"]
        index_files = None
        if noted is not None:
            index_files = [IndexSnapshot._make(note) for note in noted]
        return DerivedSummary(
            store_id,
            int(content["position"]),
            int(content["lastRecord"]),
            int(content["minOffset"]),
            queues,
            index_files,
            tuple(Hole(int(at), int(size), str(reason)) for at, size, reason in content.get("holes", ())),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("summary_unreadable", path=str(path), error=str(error))
        return None
