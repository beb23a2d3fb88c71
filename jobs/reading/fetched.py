"""Read a split from its broker over a socket, for executors that cannot access the store's files.

A split is a range of offsets of one queue. The next request is sent before the current response is converted
to Arrow, so that the broker can work meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import PullRecordsHeader, PullRecordsResponse
from actors.wire.raymq_requests import PULL_RECORDS_BYTES_MAX
from cluster.client.message_selector import ALL_MESSAGES, MessageSelector
from jobs.reading.chunk import LostRange, Numbers, ReadChunk, lost_ranges, make_chunks
from jobs.reading.connection import ReaderConnection, response_error
from jobs.reading.log_epochs import PULL_CODES, READER_GROUP, lost_past, valid_offset
from jobs.reading.selection import select_records
from jobs.reading.splits import Split
from store.kernels.memory import U8
from store.kernels.records_to_columns import find_records
from store.message.record import QUEUE_OFFSET


class FetchedSplit:
    """Fetches the messages of one split from its broker."""

    def __init__(
        self, split: Split, columns: Sequence[str], selector: MessageSelector = ALL_MESSAGES
    ) -> None:
        self._split = split
        self._columns = tuple(columns)
        self._selector = selector
        self._end, self._history = split.end, split.location.history
        self._connection = ReaderConnection(split.location.address)
        self._requested: tuple[int, int] | None = None

    def read(self, offset: int) -> Iterator[ReadChunk]:
        """Yield the selected messages of one broker response, from queue offset `offset` on.

        Raises FetchFailed.
        """
        response = self._checked_response(offset)
        if response is None:
            lost = LostRange(offset, self._split.end, lost_past(self._split.queue.broker_name, self._end))
            yield ReadChunk(None, self._split.end, [lost])
            return
        if response.code != ResponseCode.SUCCESS:
            yield self._lost_chunk(response, offset)
            return
        data = np.frombuffer(response.body, np.uint8)
        positions = find_records(data)
        sizes = np.diff(positions, append=len(data))
        offsets = queue_offsets(data, positions)
        if np.any(np.diff(offsets, prepend=offset - 1) < 1):
            # A record is damaged: `make_chunks` reports it.
            offsets = np.arange(offset, offset + len(positions))
        # The broker skips messages that it cannot read, so the last ones may be after the end of the split.
        offsets = offsets[offsets < self._end]
        positions, sizes = positions[: len(offsets)], sizes[: len(offsets)]
        following = int(offsets[-1]) + 1 if len(offsets) else self._end
        if following < self._end:
            self._request(following)
        rows = select_records(data.data, positions, sizes, self._selector)
        queue, columns = self._split.queue, self._columns
        yield from make_chunks(
            data.data, positions[rows], offsets[rows], following, queue.broker_name, columns
        )
        skipped = np.setdiff1d(np.arange(offset, following), offsets, assume_unique=True)
        reason = f"broker {self._connection.address} skipped it: its record is damaged or deleted"
        if len(skipped):
            yield ReadChunk(None, following, lost_ranges(skipped, reason))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _request(self, offset: int) -> None:
        queue = self._split.queue
        header = PullRecordsHeader(
            queue.topic,
            queue.queue_id,
            offset,
            consumer_group=READER_GROUP,
            max_messages=self._end - offset,
            max_bytes=PULL_RECORDS_BYTES_MAX,
            history=self._history or None,
        )
        self._requested = offset, self._connection.send(RayMQRequestCode.PULL_RECORDS, header.to_ext())

    def _response(self, offset: int) -> RemotingCommand:
        if self._requested is None or self._requested[0] != offset:
            self._request(offset)
        assert self._requested is not None
        _, opaque = self._requested
        self._requested = None
        return self._connection.receive(opaque)

    def _checked_response(self, offset: int) -> RemotingCommand | None:
        """Return the response to a pull, or None if the log of the broker went back to before `offset`."""
        if offset >= self._end:
            return None
        response = self._response(offset)
        if "history" not in response.ext:
            return response
        # The broker has another epoch than that in which the split was planned.
        self._end = valid_offset(self._connection, self._split.queue, self._end, self._history)
        self._history = ""
        return self._response(offset) if offset < self._end else None

    def _lost_chunk(self, response: RemotingCommand, offset: int) -> ReadChunk:
        """Convert a response that reports offsets as missing to a chunk without messages.

        The lost offsets begin at `offset`. Raises FetchFailed for any other error response.
        """
        if response.code not in PULL_CODES:
            raise response_error(self._connection.address, response)
        header = PullRecordsResponse.from_ext(response.ext)
        following = header.next_begin_offset
        end = min(following, self._end) if following > offset else self._end
        existing = f"[{header.min_offset}, {header.max_offset})"
        reason = f"broker {self._connection.address} has only offsets {existing} of this queue"
        return ReadChunk(None, end, [LostRange(offset, end, reason)])


def queue_offsets(data: U8, positions: Numbers) -> Numbers:
    """Return the queue offset of each record at byte positions `positions` of `data`."""
    fields = data[positions[:, np.newaxis] + np.arange(QUEUE_OFFSET, QUEUE_OFFSET + 8)]
    return fields.view(">i8")[:, 0].astype(np.int64)
