"""LakeStatus: what a table has, and how far it is behind its topic."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog

from jobs.lake.catalogs import lake_errors
from jobs.lake.lake_table import TOPIC, LakeGap, LakeTable
from jobs.lake.round import plan_round
from jobs.reading.reader import SplitsReader
from jobs.reading.splits import QueueState, Split


@dataclass(frozen=True)
class LakeStatus:
    """The status of the table of a topic; None is unknown.

    `messages_behind` confirmed messages are not in the table; the oldest is `seconds_behind` old.
    """

    topic: str
    table: str
    rows: int | None
    files: int | None
    size_bytes: int | None
    snapshot: int | None
    committed_at: str | None
    messages_behind: int | None
    seconds_behind: float | None
    gaps: Sequence[LakeGap]

    @property
    def lost(self) -> int:
        """Number of offsets in the gaps."""
        return sum(each.end - each.begin for each in self.gaps)


def topics_in(catalog: Catalog, namespace: str) -> list[str]:
    """Return the topics that have a table. Raises `LakeUnavailable`."""
    with lake_errors("the catalog"):
        tables = [catalog.load_table(each) for each in catalog.list_tables(namespace)]
    return sorted(each.properties[TOPIC] for each in tables if TOPIC in each.properties)


def lake_status(table: LakeTable, queues: Sequence[QueueState] | None, now: datetime) -> LakeStatus:
    """Return the status of a table; `queues` are None if the brokers cannot be reached.

    Raises `LakeInvalid` and `LakeUnavailable`.
    """
    state = table.state()
    snapshot = table.iceberg.current_snapshot()

    def total(key: str) -> int | None:
        if snapshot is None:
            return 0
        found = None if snapshot.summary is None else snapshot.summary.get(key)
        return None if found is None else int(str(found))

    plan = None if queues is None else plan_round(queues, state, sys.maxsize)
    return LakeStatus(
        table.topic,
        table.name,
        total("total-records"),
        total("total-data-files"),
        total("total-files-size"),
        state.snapshot_id,
        None if snapshot is None else datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(),
        None if plan is None else plan.message_count,
        None if plan is None else _seconds_behind(plan.ranges, now),
        state.gaps,
    )


def _seconds_behind(missing: Sequence[Split], now: datetime) -> float | None:
    """Return the age of the oldest message in `missing`; None if none of the first ones can be read."""
    firsts = [Split(each.queue, each.begin, each.begin + 1, each.location) for each in missing]
    reader = SplitsReader(firsts, ["storeTimestamp"], fail_on_data_loss=False, map_files=True)
    times = [time for batch in reader.read_all() for time in batch.column(0).to_pylist()]
    if not missing:
        return 0.0
    return max((now - min(times)).total_seconds(), 0.0) if times else None
