"""Results of sends, and receipts of a table send."""

from __future__ import annotations

import pickle

import pytest

from cluster.client.results import QueueReceipt, QueueReceipts, SendResult, SendStatus
from store.message.message_queue import MessageQueue

FIRST, SECOND, OTHER = (MessageQueue("T", "broker-a", number) for number in (2, 10, 11))


def test_send_result_is_immutable_comparable_and_hashable() -> None:
    result = SendResult(SendStatus.SEND_OK, "id", FIRST, 7)
    copied = pickle.loads(pickle.dumps(result))
    assert copied == result
    assert {copied, result} == {result}
    assert result != SendResult(SendStatus.SEND_OK, "id", FIRST, 8)
    with pytest.raises(AttributeError):
        result.queue_offset = 8  # type: ignore[misc]


def test_receipts_combine_the_batches_of_each_queue() -> None:
    receipts = QueueReceipts()
    receipts.add(SECOND, 3, 0, 70)
    receipts.add(FIRST, 5, 5, 100)
    receipts.add(SECOND, 2, 4, 73)
    assert dict(receipts) == {FIRST: QueueReceipt(5, 5, 100, 104), SECOND: QueueReceipt(5, 4, 70, 74)}
    assert receipts == {SECOND: receipts[SECOND], FIRST: receipts[FIRST]}
    assert list(receipts) == [FIRST, SECOND]  # sorted by queue
    assert (receipts.rows, receipts.resent_rows) == (10, 9)
    assert repr(receipts) == repr({FIRST: receipts[FIRST], SECOND: receipts[SECOND]})


def test_receipts_exclude_queues_without_rows() -> None:
    receipts = QueueReceipts()
    receipts.add(FIRST, 1, 0, 0)
    assert OTHER not in receipts
    assert receipts.get(OTHER) is None
    with pytest.raises(KeyError):
        receipts[OTHER]


def test_receipts_list_the_offsets_of_each_batch_by_queue() -> None:
    receipts = QueueReceipts()
    receipts.add(SECOND, 3, 0, 70)
    receipts.add(FIRST, 5, 5, 100)
    receipts.add(SECOND, 2, 4, 90)
    assert sorted(receipts.runs()) == [(FIRST, 100, 105), (SECOND, 70, 73), (SECOND, 90, 92)]
