"""Figures of the broker's permission and of its store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence

from actors.broker.broker_settings import BrokerSettings
from actors.broker.core.loop.reads import Reads
from actors.broker.core.metric_labels import STORAGE, STORAGE_LABELS
from actors.host.figures import Figure, Kind, Sample, Value
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock
from store.message_store import MessageStore
from store.store_errors import StoreError


class ReserveTime:
    """The age of the first message of a store, whose record may have to be read from the disk."""

    def __init__(self, store: MessageStore, reads: Reads, clock: Clock) -> None:
        self._store = store
        self._reads = reads
        self._clock = clock
        self._first_ms: int | None = None

    async def refresh(self) -> None:
        """Read the time of the first message."""
        positions = self._store.positions
        self._first_ms = None
        if positions.min < positions.confirmed:
            try:
                read = self._store.record_timestamp
                self._first_ms = await self._reads.read(lambda: read(positions.min))
            except (StoreError, Refused):  # reported as unknown
                return

    def samples(self) -> Iterator[Sample]:
        """Yield the age in ms, unless there is no message."""
        if self._first_ms is not None:
            yield Sample(STORAGE, max(self._clock.wall_ms() - self._first_ms, 0))


def store_figures(
    settings: BrokerSettings, store: MessageStore, reads: Reads, clock: Clock
) -> Sequence[Figure]:
    """Return the figures of the store of one broker."""
    positions, reserve = store.positions, ReserveTime(store, reads, clock)

    def sample(value: Callable[[], Value]) -> Callable[[], Iterator[Sample]]:
        return lambda: iter((Sample(STORAGE, value()),))

    return (
        Figure(
            "permission", Kind.GAUGE, "", lambda: settings.permission,
            "Permission of the broker: a sum of 4 (read) and 2 (write).", is_described=False,
            metric="rocketmq_broker_permission",
        ),
        Figure(
            "storage_size", Kind.GAUGE, "bytes", sample(lambda: shutil.disk_usage(store.root).used),
            "Used bytes of the file system of the store.", STORAGE_LABELS,
            metric="rocketmq_storage_size_bytes",
        ),
        Figure(
            "storage_flush_behind", Kind.GAUGE, "bytes",
            sample(lambda: positions.written - positions.flushed),
            "Bytes of the log that are not flushed.", STORAGE_LABELS,
            metric="rocketmq_storage_flush_behind_bytes",
        ),
        Figure(
            "storage_dispatch_behind", Kind.GAUGE, "bytes",
            sample(lambda: positions.written - positions.dispatched),
            "Bytes of the log that are not dispatched.", STORAGE_LABELS,
            metric="rocketmq_storage_dispatch_behind_bytes",
        ),
        Figure(
            "storage_message_reserve_time", Kind.GAUGE, "ms", reserve.samples, "Age of the first message.",
            STORAGE_LABELS, metric="rocketmq_storage_message_reserve_time_milliseconds",
            refresh=reserve.refresh,
        ),
    )  # fmt: skip
