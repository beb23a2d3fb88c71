"""The derived summary (file `raymq.derived`): the state of consume queues and index at the last checkpoint.

The file is written at every checkpoint and at shutdown. It is a lower bound, whatever kind of crash followed:
data that it lists and that is missing at the next start was lost, and is rebuilt from the CommitLog. The file
may be deleted at any time; all derived files are then compared with the log in one walk. A wrong digit in the
file could hide records permanently, so its first line is the CRC-32 of the rest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from store.commitlog.holes import Hole
from store.common.logs import get_logger
from store.consumequeue.consume_queue import ConsumeQueue, QueueSnapshot
from store.consumequeue.table import ConsumeQueueTable
from store.disk.files import SYNC_ONE_BY_ONE_MAX
from store.index.index_file import IndexSnapshot
from store.message.crc import running_crc
from store.recovery.checkpoint import StoreCheckpoint

_log = get_logger(__name__)

SUMMARY_FILE = "raymq.derived"
_VERSION = 2


@dataclass(frozen=True)
class DerivedSummary:
    """State of the derived files (consume queues and index) at a checkpoint.

    All records before the CommitLog offset `position` were dispatched; `last_record` is the offset of the
    last of them, or -1. `queues` and `index_files` are the snapshots at that time; `index_files` is None for
    a store without an index. `holes` are the damaged ranges of the log found so far. If the store
    `is_replicated`, records after `position` may be unconfirmed, and be truncated later.
    """

    store_id: str
    position: int
    last_record: int
    min_offset: int
    queues: dict[tuple[str, int], QueueSnapshot]
    index_files: list[IndexSnapshot] | None
    holes: tuple[Hole, ...] = ()
    is_replicated: bool = False


class QueueSnapshots:
    """The latest snapshots of all consume queues of a store.

    A checkpoint takes new snapshots only of queues that changed.
    """

    def __init__(self, queues: ConsumeQueueTable) -> None:
        self._queues = queues
        self._by_topic: dict[str, dict[str, orjson.Fragment]] = {}
        self._unsettled: list[ConsumeQueue] = []
        self._remaining: list[ConsumeQueue] = list(queues)
        self.dirty_paths: list[str] = []
        """Queue files that the checkpoint must sync first.

        If there are more than SYNC_ONE_BY_ONE_MAX, the list is incomplete, because the whole file system is
        synced then.
        """

    @property
    def has_unsettled(self) -> bool:
        """True if some snapshots lack modification times, because their files had just changed."""
        return bool(self._unsettled)

    def begin(self) -> None:
        """Begin a checkpoint: collect the queues that changed since the last one, for `resume`."""
        for topic, queue_id in self._queues.gone:
            snapshots = self._by_topic.get(topic, {})
            snapshots.pop(str(queue_id), None)
            if not snapshots:
                self._by_topic.pop(topic, None)
        self._queues.gone.clear()
        changed = self._queues.files.changed
        self._remaining += changed
        self._remaining += [queue for queue in self._unsettled if not queue.has_changed]
        self._unsettled = []
        changed.clear()

    def resume(self, count: int) -> bool:
        """Take the snapshots of up to `count` collected queues. Return True if no more queues are left."""
        for queue in self._remaining[:count]:
            self._take_snapshot(queue, is_last=False)
        del self._remaining[:count]
        return not self._remaining

    def finish(self) -> None:
        """Take all remaining snapshots at shutdown.

        They include modification times, because the queues will not change any more.
        """
        for queue in self._remaining:
            self._take_snapshot(queue, is_last=True)
        self._remaining = []

    def _take_snapshot(self, queue: ConsumeQueue, *, is_last: bool) -> None:
        if self._queues.find(queue.topic, queue.queue_id) is not queue:
            return  # deleted since
        if len(self.dirty_paths) <= SYNC_ONE_BY_ONE_MAX:  # for more, the whole file system is synced
            self.dirty_paths += queue.dirty_paths()
        snapshot = queue.snapshot(is_last=is_last)
        snapshots = self._by_topic.setdefault(queue.topic, {})
        if snapshot.next_offset:
            snapshots[str(queue.queue_id)] = orjson.Fragment(orjson.dumps(tuple(snapshot)))
        else:
            snapshots.pop(str(queue.queue_id), None)
        if 0 in snapshot.times_ns:
            self._unsettled.append(queue)

    def encode(self, summary: DerivedSummary) -> bytes:
        """Return the content of the summary file.

        It contains the queue snapshots of this object, and all other fields of `summary`.
        """
        index_files = summary.index_files
        content = orjson.dumps(
            {
                "version": _VERSION,
                "storeId": summary.store_id,
                "position": summary.position,
                "lastRecord": summary.last_record,
                "minOffset": summary.min_offset,
                "indexFiles": None if index_files is None else [tuple(snapshot) for snapshot in index_files],
                "queues": self._by_topic,
                "holes": [tuple(hole) for hole in summary.holes],
                "replicated": summary.is_replicated,
            }
        )
        return b"%08x\n%b" % (running_crc(content), content)


def summary_path(root: Path) -> Path:
    """Return the path of the summary file of the store at `root`."""
    return root / SUMMARY_FILE


def read_summary(root: Path, store_id: str) -> DerivedSummary | None:
    """Read the derived summary of the store at `root`.

    Returns None if the file is missing, damaged, or belongs to another store than `store_id`.
    """
    path = summary_path(root)
    try:
        crc, _, text = path.read_bytes().partition(b"\n")
        if crc != b"%08x" % running_crc(text):
            raise ValueError("CRC does not match the content")  # noqa: TRY301 - the handler below logs all damage
        content: Any = orjson.loads(text)
        if content["version"] != _VERSION or content["storeId"] != store_id:
            return None
        queues = {
            (topic, int(queue_id)): QueueSnapshot._make(snapshot)
            for topic, by_id in content["queues"].items()
            for queue_id, snapshot in by_id.items()
        }
        snapshots = content["indexFiles"]
        index_files = None
        if snapshots is not None:
            index_files = [IndexSnapshot._make(snapshot) for snapshot in snapshots]
        return DerivedSummary(
            store_id,
            int(content["position"]),
            int(content["lastRecord"]),
            int(content["minOffset"]),
            queues,
            index_files,
            tuple(Hole(int(at), int(size), str(reason)) for at, size, reason in content.get("holes", ())),
            content.get("replicated", False) is True,
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning(
            "derived_summary_unreadable",
            path=str(path),
            error=str(error),
            effect="the next start compares all consume queues and the index with the log",
        )
        return None


def confirmed_bound(summary: DerivedSummary | None, checkpoint: StoreCheckpoint) -> int | None:
    """Return the CommitLog offset up to which the log of a store is known to be confirmed; None: all of it.

    Tools that work on a stopped store derive nothing from records after it: the group of the replica may
    truncate them.
    """
    if summary is None or not summary.is_replicated:
        return None
    return max(summary.position, checkpoint.confirm_physical_offset)
