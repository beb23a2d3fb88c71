"""What the derived files should hold, as far as it was noted: `raymq.derived` in the store's root.

Written at every checkpoint and at the end. It is a lower bound, valid however the store ended: whatever of it
is missing at the next start has been lost and is built again from the log. The file itself can be deleted at
any time; then all derived files are compared by one walk over the log.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from store.consume_queue import QueueNote
from store.index_file import IndexNote
from store.logs import get_logger

_log = get_logger(__name__)

_FILE = "raymq.derived"
_VERSION = 1


@dataclass(frozen=True)
class DerivedSummary:
    """Everything before `position` was dispatched; `last_record` is the last one's place, −1 for none.

    `queues` and `index_files` are what was there then; no index files are known of a store without an index.
    """

    store_id: str
    position: int
    last_record: int
    min_offset: int
    queues: dict[tuple[str, int], QueueNote]
    index_files: list[IndexNote] | None

    def encode(self) -> bytes:
        """The file's content."""
        topics: dict[str, dict[str, QueueNote]] = {}
        for (topic, queue_id), note in self.queues.items():
            topics.setdefault(topic, {})[str(queue_id)] = note
        return orjson.dumps(
            {
                "version": _VERSION,
                "storeId": self.store_id,
                "position": self.position,
                "lastRecord": self.last_record,
                "minOffset": self.min_offset,
                "indexFiles": self.index_files,
                "queues": topics,
            },
            default=tuple,  # named tuples
        )


def summary_path(root: Path) -> Path:
    """Where a store keeps its summary."""
    return root / _FILE


def read_summary(root: Path, store_id: str) -> DerivedSummary | None:
    """The summary of this very store; None when there is none that can be used."""
    path = summary_path(root)
    try:
        content: Any = orjson.loads(path.read_bytes())
        if content["version"] != _VERSION or content["storeId"] != store_id:
            return None
        queues = {
            (topic, int(queue_id)): QueueNote(int(first), int(following), [int(crc) for crc in crcs])
            for topic, by_id in content["queues"].items()
            for queue_id, (first, following, crcs) in by_id.items()
        }
        noted = content["indexFiles"]
        index_files = None
        if noted is not None:
            index_files = [
                IndexNote(str(name), int(count), int(crc), str(header)) for name, count, crc, header in noted
            ]
        return DerivedSummary(
            store_id,
            int(content["position"]),
            int(content["lastRecord"]),
            int(content["minOffset"]),
            queues,
            index_files,
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("summary_unreadable", path=str(path), error=str(error))
        return None
