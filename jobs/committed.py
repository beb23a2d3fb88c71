"""CommittedReader: reads a topic without the messages of uncommitted write jobs (see `jobs.manifest`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cluster.client.config import Nameservers
from jobs.chunk import QUEUE_OFFSET, Numbers
from jobs.manifest import Manifest, load_manifests, merge_ranges
from jobs.reader import SplitsReader
from jobs.splits import Split
from jobs.write_job import job_mark
from store.message.message_queue import MessageQueue

UNIQ_KEY = "uniqKey"


class CommittedRanges:
    """The offset ranges that write jobs have committed, by queue of `topics`."""

    def __init__(self, topics: Collection[str], manifests: Sequence[Manifest]) -> None:
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

    def visible(self, queue: MessageQueue, offsets: Numbers, uniq_keys: pa.Array) -> NDArray[np.bool_]:
        """Return a mask of the messages that a committed read returns.

        A message is visible if its offset is committed, or if its UNIQ_KEY shows that no job wrote it.

        Args:
            queue: The queue of the messages.
            offsets: The queue offset of each message.
            uniq_keys: The UNIQ_KEY of each message, or null.
        """
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
    return CommittedRanges(topics, load_manifests(nameservers, topics))


class CommittedReader(SplitsReader):
    """Reads splits without the messages of uncommitted write jobs."""

    def __init__(
        self,
        splits: Sequence[Split],
        columns: Sequence[str],
        fail_on_data_loss: bool,
        map_files: bool,
        ranges: CommittedRanges,
    ) -> None:
        extra = [name for name in (QUEUE_OFFSET, UNIQ_KEY) if name not in columns]
        super().__init__(splits, (*columns, *extra), fail_on_data_loss, map_files)
        self._read_columns, self.columns = self.columns, tuple(columns)
        self._ranges = ranges

    def read_split(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield the visible messages of `split` in offset order. Raises the errors of `SplitsReader`."""
        for batch in super().read_split(split):
            offsets, uniq_keys = batch.column(QUEUE_OFFSET).to_numpy(), batch.column(UNIQ_KEY)
            visible = self._ranges.visible(split.queue, offsets, uniq_keys)
            shown = batch.select(self.columns)
            yield shown if visible.all() else shown.filter(pa.array(visible))
