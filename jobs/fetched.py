"""Read a split from its broker over a socket, for executors that cannot access the store's files.

A split is a range of offsets of one queue. The next request is sent before the current response is converted
to Arrow, so that the broker can work meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.remoting.codes import RayMQRequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import PullRecordsHeader, PullRecordsResponse
from actors.remoting.raymq_requests import PULL_RECORDS_BYTES_MAX
from jobs.chunk import Chunk, LostRange, make_chunk
from jobs.connection import Connection, response_error
from jobs.splits import Split
from store.kernels.records_to_columns import find_records

READER_GROUP = "RAYMQ_BULK_READER"
"""Consumer group name in the pull requests of bulk reads. RocketMQ's protocol requires a group in every pull;
offsets are never committed for this one.
"""

_GONE = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class FetchedSplit:
    """Fetches the messages of one split from its broker."""

    def __init__(self, split: Split, columns: Sequence[str]) -> None:
        self._split = split
        self._columns = tuple(columns)
        self._connection = Connection(split.location.address)
        self._requested: tuple[int, int] | None = None

    def read(self, offset: int) -> Chunk:
        """Return the messages of one broker response, beginning with the message at queue offset `offset`.

        Raises FetchFailed.
        """
        response = self._response(offset)
        if response.code != ResponseCode.SUCCESS:
            return self._lost_chunk(response, offset)
        positions = find_records(np.frombuffer(response.body, np.uint8))
        following = offset + len(positions)
        if following < self._split.end:
            self._request(following)
        return make_chunk(response.body, positions, offset, self._split.queue.broker_name, self._columns)

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
            max_messages=self._split.end - offset,
            max_bytes=PULL_RECORDS_BYTES_MAX,
        )
        self._requested = offset, self._connection.send(RayMQRequestCode.PULL_RECORDS, header.to_ext())

    def _response(self, offset: int) -> RemotingCommand:
        if self._requested is None or self._requested[0] != offset:
            self._request(offset)
        assert self._requested is not None
        _, opaque = self._requested
        self._requested = None
        return self._connection.receive(opaque)

    def _lost_chunk(self, response: RemotingCommand, offset: int) -> Chunk:
        """Convert a response that reports offsets as missing to a chunk without messages.

        The lost offsets begin at `offset`. Raises FetchFailed for any other error response.
        """
        if response.code not in _GONE:
            raise response_error(self._connection.address, response)
        header = PullRecordsResponse.from_ext(response.ext)
        following = header.next_begin_offset
        end = min(following, self._split.end) if following > offset else self._split.end
        existing = f"[{header.min_offset}, {header.max_offset})"
        reason = f"broker {self._connection.address} has only offsets {existing} of this queue"
        return Chunk(None, end, [LostRange(offset, end, reason)])
