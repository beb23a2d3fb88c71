"""Reading a split over the broker's socket, where its files lie on another machine.

While one answer is made into Arrow, the next is already on its way: a request goes out as soon as the answer
before it has come.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.remoting.codes import RayMQRequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.headers import PullRecordsHeader, PullRecordsResponse
from actors.remoting.raymq_requests import PULL_RECORDS_BYTES_MAX
from jobs.chunk import Chunk, Lost, make_chunk
from jobs.connection import Connection, refusal
from jobs.splits import Split
from store.kernels.records_to_columns import find_records

READER_GROUP = "RAYMQ_BULK_READER"
"""Brokers want a group's name with each pull; nothing is ever committed under this one."""

_GONE = (ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)


class FetchedSplit:
    """One split's messages, asked of the broker that holds them."""

    def __init__(self, split: Split, columns: Sequence[str]) -> None:
        self._split = split
        self._columns = tuple(columns)
        self._connection = Connection(split.place.address)
        self._asked: tuple[int, int] | None = None

    def read(self, offset: int) -> Chunk:
        """Give the messages at `offset`: as many as the broker puts into one answer."""
        answer = self._answer(offset)
        if answer.code != ResponseCode.SUCCESS:
            return self._nothing(answer, offset)
        positions = find_records(np.frombuffer(answer.body, np.uint8))
        following = offset + len(positions)
        if following < self._split.end:
            self._ask(following)
        return make_chunk(answer.body, positions, offset, self._split.queue.broker_name, self._columns)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, offset: int) -> None:
        queue = self._split.queue
        header = PullRecordsHeader(
            queue.topic,
            queue.queue_id,
            offset,
            consumer_group=READER_GROUP,
            max_messages=self._split.end - offset,
            max_bytes=PULL_RECORDS_BYTES_MAX,
        )
        self._asked = offset, self._connection.send(RayMQRequestCode.PULL_RECORDS, header.to_ext())

    def _answer(self, offset: int) -> RemotingCommand:
        if self._asked is None or self._asked[0] != offset:
            self._ask(offset)
        assert self._asked is not None
        _, opaque = self._asked
        self._asked = None
        return self._connection.receive(opaque)

    def _nothing(self, answer: RemotingCommand, offset: int) -> Chunk:
        """What an answer without messages means: offsets that are gone, or a broker that cannot say."""
        if answer.code not in _GONE:
            raise refusal(self._connection.address, answer)
        said = PullRecordsResponse.from_ext(answer.ext)
        following = said.next_begin_offset
        end = min(following, self._split.end) if following > offset else self._split.end
        kept = f"[{said.min_offset}, {said.max_offset})"
        reason = f"the broker {self._connection.address} has {kept} of this queue"
        return Chunk(None, end, [Lost(offset, end, reason)])
