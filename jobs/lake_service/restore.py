"""`restore_topic`: send the messages of a topic's table to another topic, in the order of their queues.

    <home>/restores/<topic>-to-<new>/plan.json     the snapshot, before the first send
    <home>/restores/<topic>-to-<new>/_imports/…    the progress, as of an import (`jobs.archive.import_topic`)

A file has rows of several queues, and each queue has rows in many files. A first scan of three columns
finds the offsets of each queue in each file; then each queue is sent in the order of its offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from operator import attrgetter

import msgspec
import numpy as np
import pyarrow as pa

from cluster.client.config import Nameservers
from cluster.client.errors import TopicNotFound
from cluster.control.topology.topology import DEFAULT_CLUSTER
from cluster.paths import home_of
from jobs.archive.directory import IMPORTS, MESSAGES_PER_FILE, ArchiveDirectory
from jobs.archive.export import Progress
from jobs.archive.import_topic import SentPart, send_parts
from jobs.job_errors import LakeInvalid, TopicNotEmpty
from jobs.lake.history import TopicHistory
from jobs.lake.lake_table import LakeState, LakeTable
from jobs.reading.chunk import QUEUE_OFFSET
from jobs.reading.describe import describe_topic
from jobs.reading.splits import join_small
from jobs.reading.table_files import FilePart, RowBounds, TableSource, TableSplit
from jobs.writing.commit import WriteReceipt

PLAN = "plan.json"
SENT_COLUMNS = ("queueOffset", "body", "keys", "tags", "properties")


class RestorePlan(msgspec.Struct, frozen=True):
    """The table and the snapshot that a restore sends."""

    location: str
    snapshot_id: int | None


@dataclass(frozen=True)
class Run:
    """The rows of one queue in one file: `rows` of them, with offsets from `begin` to `last`."""

    broker: str
    queue: int
    begin: int
    last: int
    rows: int
    source: TableSource
    part: FilePart

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises `LakeInvalid` if they are not sorted by offset."""
        mine = (RowBounds(self.broker, self.queue, self.begin, self.last + 1),)
        offset = -1
        for batch in replace(self.source, bounds=mine).batches(self.part, SENT_COLUMNS):
            offsets = batch.column("queueOffset").to_numpy()
            if np.any(np.diff(offsets, prepend=offset) < 1):
                raise LakeInvalid(
                    f"the rows of queue {self.broker}/{self.queue} in {self.part.path} are not sorted by"
                    " offset: let `raymq lake compact` rewrite the file, then restore into a new topic"
                )
            offset = int(offsets[-1])
            yield batch


def restore_topic(
    table: LakeTable,
    new_topic: str,
    *,
    nameservers: Nameservers | None = None,
    append: bool = False,
    progress: Progress = lambda done, total: None,
) -> WriteReceipt:
    """Send the messages that a table has now to the topic `new_topic`, and commit them at the end.

    Each queue of the table is sent to one queue of the topic, in order. The messages keep body, keys, tag and
    user properties; they get new UNIQ_KEYs and store times. The topic is created if it does not exist. An
    interrupted restore is resumed when it is called again: the part that was being sent is sent again with
    the same UNIQ_KEYs, and reads with `committed` see each message once.

    Raises:
        TopicNotEmpty: `new_topic` has messages, and `append` is False.
        LakeInvalid: The table has no bodies, its rows are not sorted, or the snapshot of an interrupted
            restore has expired.
        ArchiveInvalid: The restore is complete already.
        WriteFailed, CommitFailed, LakeUnavailable, ClientError: As in `import_topic`.
    """
    if table.bodies:
        raise LakeInvalid(
            f"the table {table.name} has decoded columns instead of bodies, of which no messages"
            " can be made: read it with Spark and send rows with write_queue"
        )
    archive = ArchiveDirectory(home_of(DEFAULT_CLUSTER) / "restores" / f"{table.topic}-to-{new_topic}")
    plan = archive.load(PLAN, RestorePlan)
    if plan is None:
        if not append:
            _check_empty(new_topic, nameservers)
        plan = RestorePlan(table.location, table.state().snapshot_id)
        archive.save(PLAN, plan)
    elif plan.location != table.location:
        raise LakeInvalid(
            f"{archive.root} is the progress of a restore of another table, {plan.location}: delete it to"
            " start again"
        )
    state = LakeState() if plan.snapshot_id is None else table.state(plan.snapshot_id)
    history = TopicHistory(table, state)
    parts = list(_parts(_runs(history.files())))
    return send_parts(archive, f"{IMPORTS}/{new_topic}", new_topic, parts, nameservers, progress)


def _check_empty(topic: str, nameservers: Nameservers | None) -> None:
    try:
        count = sum(each.max_offset - each.min_offset for each in describe_topic(nameservers, topic))
    except TopicNotFound:
        return
    if count:
        raise TopicNotEmpty(
            f"topic {topic} has {count:,} messages: restore into another topic, or give --append to send the"
            " messages of the table after them"
        )


def _runs(tables: Iterable[TableSplit]) -> list[Run]:
    """Return the runs of all queues in order. Raises `LakeInvalid` if those of a queue overlap."""
    runs = sorted(
        (run for table in tables for part in table.parts for run in _runs_of(table.source, part)),
        key=attrgetter("broker", "queue", "begin"),
    )
    for before, after in pairwise(runs):
        if (before.broker, before.queue) == (after.broker, after.queue) and after.begin <= before.last:
            raise LakeInvalid(
                f"the files {before.part.path} and {after.part.path} both have rows of queue {after.broker}/"
                f"{after.queue} around offset {after.begin}: let `raymq lake compact` rewrite them in order"
            )
    return runs


def _runs_of(source: TableSource, part: FilePart) -> Iterator[Run]:
    queue, offset = ["brokerName", "queueId"], QUEUE_OFFSET
    grouped = [
        pa.Table.from_batches([batch])
        .group_by(queue)
        .aggregate([(offset, "min"), (offset, "max"), (offset, "count")])
        for batch in source.batches(part, (*queue, offset))
    ]
    if grouped:
        whole = [(f"{offset}_min", "min"), (f"{offset}_max", "max"), (f"{offset}_count", "sum")]
        found = pa.concat_tables(grouped).group_by(queue).aggregate(whole)
        columns = found.select([*queue, *map("_".join, whole)]).to_pydict().values()
        for broker, queue_id, begin, last, rows in zip(*columns, strict=True):
            yield Run(broker, queue_id, begin, last, rows, source, part)


def _parts(runs: Sequence[Run]) -> Iterator[SentPart]:
    """Join the runs of a queue to parts of about MESSAGES_PER_FILE messages, which are resumed as a whole."""
    for (broker, queue), of_queue in groupby(runs, attrgetter("broker", "queue")):
        for joined in join_small(of_queue, attrgetter("rows"), MESSAGES_PER_FILE):
            name = f"{broker}-{queue}-{joined[0].begin}"
            rows, batches = sum(each.rows for each in joined), partial(_batches, joined)
            yield SentPart(name, broker, queue, rows, batches)


def _batches(runs: Sequence[Run]) -> Iterator[pa.RecordBatch]:
    for run in runs:
        yield from run.batches()
