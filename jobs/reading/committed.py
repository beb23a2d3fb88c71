"""CommittedRanges: hides the messages of uncommitted write jobs from a read (see `write_manifest`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cluster.client.config import Nameservers
from jobs.reading.chunk import QUEUE_OFFSET, Numbers
from jobs.reading.write_manifest import WriteManifest, job_mark, load_write_manifests, merge_ranges
from store.message.message_queue import MessageQueue

UNIQ_KEY = "uniqKey"


class CommittedRanges:
    """The offset ranges that write jobs have committed, by queue of `topics`. A filter of rows."""

    columns = (QUEUE_OFFSET, UNIQ_KEY)

    def __init__(self, topics: Collection[str], manifests: Sequence[WriteManifest]) -> None:
        self._marks = {topic: job_mark(topic) for topic in topics}
        by_queue: dict[MessageQueue, list[tuple[int, int]]] = {}
        for topic in topics:
            listed = (each for manifest in manifests if manifest.topic == topic for each in manifest.ranges)
            for each in merge_ranges(listed):
                queue = MessageQueue(topic, each.broker_name, each.queue_id)
                by_queue.setdefault(queue, []).append((each.begin, each.end))
        self._borders: Mapping[MessageQueue, Numbers] = {
            queue: np.array(ranges, np.int64).ravel() for queue, ranges in by_queue.items()
        }

    def mask(self, queue: MessageQueue, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of the messages of `queue` that a committed read returns.

        A message is visible if its offset is committed, or if its UNIQ_KEY shows that no job wrote it.
        """
        offsets, uniq_keys = batch.column(QUEUE_OFFSET).to_numpy(), batch.column(UNIQ_KEY)
        borders = self._borders.get(queue)
        committed = np.zeros(len(offsets), np.bool_)
        if borders is not None:
            # The borders alternate between begin and end. An offset inside a range follows an odd number of
            # borders.
            committed = np.searchsorted(borders, offsets, side="right") % 2 == 1
        if committed.all():
            return committed
        from_job = pc.fill_null(pc.starts_with(uniq_keys, self._marks[queue.topic]), fill_value=False)
        return committed | ~from_job.to_numpy(zero_copy_only=False)


def committed_ranges(nameservers: Nameservers | None, topics: Collection[str]) -> CommittedRanges:
    """Read the committed offsets of `topics` from the manifests. Raises `cluster.client.ClientError`.

    Call this before requesting the end offsets of the queues. Otherwise a job that commits in between would
    be partly visible.
    """
    return CommittedRanges(topics, load_write_manifests(nameservers, topics))
