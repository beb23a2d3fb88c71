"""RecordBlocks: appends records that compiled code encodes for their place in the log."""

from collections.abc import Collection

from store.consumequeue.table import ConsumeQueueTable
from store.kernels.memory import I64
from store.writing.appender import Appender, BlockRoom


class RecordBlocks:
    """Appends blocks of records to one store.

        begin ──► the caller encodes records and advances `assigned_offsets` ──► append

    No other method of the store may be called in between.
    """

    def __init__(self, appender: Appender, queues: ConsumeQueueTable) -> None:
        self._appender = appender
        self._queues = queues

    def begin(self) -> BlockRoom | None:
        """Return where a block would be appended; None if appends are refused or need a new file."""
        return self._appender.begin_block()

    def append(self, position: int, records: memoryview, *, is_awaited: bool) -> None:
        """Append records that were encoded for the position that `begin` returned.

        `is_awaited` says whether one of them belongs to a queue or topic of `awaited`. Raises StoreError, and
        then none is appended.
        """
        self._appender.append_block(position, records, is_awaited=is_awaited)

    @property
    def assigned_offsets(self) -> I64:
        """The queue offset that the next message of each queue gets, by `index_of`."""
        return self._queues.assigned.offsets

    @property
    def version(self) -> int:
        """Changes when indexes of `assigned_offsets` become invalid."""
        return self._queues.assigned.version

    def index_of(self, topic: str, queue_id: int) -> int:
        """Return the index of a queue in `assigned_offsets`; the queue is created if it does not exist."""
        return self._queues.get(topic, queue_id).assigned_index

    @property
    def awaited(self) -> Collection[str | tuple[str, int]]:
        """The queues and topics that `MessageStore.await_messages` has set."""
        return self._appender.awaited
