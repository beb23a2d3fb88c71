"""Finds offsets that a reader has saved in another past of a broker's log (Kafka's KIP-320).

A log goes back if its store is restored from a copy, or loses its end. New messages then get the offsets of
lost ones, so that a reader that resumes at its saved offset would skip them. Therefore readers save the epoch
of the log, too (`actors.broker.core.loop.log_history`), and let the broker check the offset if it has another
one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import groupby

from actors.wire.codes import RayMQRequestCode, ResponseCode
from actors.wire.headers import PullRecordsHeader, PullRecordsResponse
from cluster.client.read_epoch import ReadEpoch
from jobs.reading.connection import ReaderConnection, response_error
from jobs.reading.splits import QueueState
from store.message.message_queue import MessageQueue

READER_GROUP = "RAYMQ_BULK_READER"
"""Consumer group name in the pull requests of bulk reads. RocketMQ's protocol requires a group in every pull;
offsets are never committed for this one.
"""

PULL_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

Epochs = Mapping[MessageQueue, ReadEpoch]
"""The epoch in which each queue was read; queues without one were read from brokers that name none."""


def epochs_after(states: Iterable[QueueState], epochs: Epochs) -> dict[MessageQueue, ReadEpoch]:
    """Return the epochs after the queues `states` were read, of which `epochs` are the former ones."""
    read = dict(epochs)
    for state in states:
        former = epochs.get(state.queue, ReadEpoch())
        read[state.queue] = epoch = ReadEpoch(former.address, former.id)
        epoch.read(state.location.address, state.location.history or None)
    return read


def gone_back(
    states: Iterable[QueueState], positions: Mapping[MessageQueue, int], epochs: Epochs
) -> dict[MessageQueue, int]:
    """Return the queues of `positions` whose log went back, and where it ends that was read in `epochs`.

    Sends requests only to brokers whose log has another epoch. Raises FetchFailed.
    """
    found = {}
    for address, group in groupby(states, lambda state: state.location.address):
        pasts = [(each.queue, epochs[each.queue].at(address)) for each in group if _is_other(each, epochs)]
        if not pasts:
            continue
        with closing(ReaderConnection(address)) as connection:
            for queue, epoch_id in pasts:
                end = valid_offset(connection, queue, positions[queue], epoch_id)
                if end < positions[queue]:
                    found[queue] = end
    return found


def _is_other(state: QueueState, epochs: Epochs) -> bool:
    epoch = epochs.get(state.queue)
    present = state.location.history
    return epoch is not None and bool(present) and epoch.at(state.location.address) not in ("", present)


def valid_offset(connection: ReaderConnection, queue: MessageQueue, offset: int, epoch_id: str) -> int:
    """Return `offset`, or the end of what the log of a broker still has of what was read in an epoch.

    Raises FetchFailed.
    """
    header = PullRecordsHeader(
        queue.topic, queue.queue_id, offset, READER_GROUP, max_messages=1, max_bytes=1, history=epoch_id
    )
    response = connection.receive(connection.send(RayMQRequestCode.PULL_RECORDS, header.to_ext()))
    if "history" not in response.ext:
        if response.code not in PULL_CODES:
            raise response_error(connection.address, response)
        return offset
    return min(offset, PullRecordsResponse.from_ext(response.ext).next_begin_offset)


def lost_past(broker_name: str, end: int) -> str:
    """Return the reason why offsets from `end` on are missing."""
    return (
        f"the log of broker {broker_name} went back to offset {end} of this queue, because its store was"
        " restored from a copy or lost its end; it may have other messages there now"
    )
