"""Reads of offset ranges that were planned in another past of the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.client import Admin, MessageQueue
from jobs import commit_read
from jobs.job_errors import CommitRefused, DataLoss
from jobs.reading.describe import describe_topic
from jobs.reading.group_offsets import GroupRead, remember_read
from jobs.reading.log_epochs import epochs_after, gone_back
from jobs.reading.reader import SplitsReader
from jobs.reading.splits import Split
from store.message.group_config import SubscriptionGroupConfig
from tests.jobs.restored_broker import TOPIC, RestoredBroker

QUEUE = MessageQueue(TOPIC, "broker-a", 0)
LOST = r"broker-a/0 \[5, 10\): the log of broker broker-a went back to offset 5"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RestoredBroker]:
    broker = RestoredBroker(tmp_path)
    yield broker
    broker.running.stop()


def bodies(split: Split, *, fail_on_data_loss: bool, map_files: bool = True) -> list[int]:
    reader = SplitsReader([split], ["body"], fail_on_data_loss, map_files)
    return [int(body) for batch in reader.read_all() for body in batch.column("body").to_pylist()]


class Result:
    """Stands for the DataFrame of a read."""


def test_offsets_of_a_lost_past_are_noticed_and_those_before_it_are_kept(broker: RestoredBroker) -> None:
    """Also if the restored log is longer than the lost one, and after further restarts."""
    broker.send(*range(5))
    broker.copy()
    broker.send(*range(5, 10))
    [state] = states = describe_topic(broker.nameservers, TOPIC)
    read, epochs = {QUEUE: 10}, epochs_after(states, {})
    split = Split(QUEUE, 2, 10, state.location)
    assert gone_back(states, read, epochs) == {}
    assert bodies(split, fail_on_data_loss=True) == [*range(2, 10)]
    broker.restore()
    broker.send(*range(20, 30))
    broker.running.stop()
    broker.start()
    states = describe_topic(broker.nameservers, TOPIC)
    assert gone_back(states, read, epochs) == {QUEUE: 5}
    assert gone_back(states, {QUEUE: 4}, epochs) == {}
    assert gone_back(states, read, {}) == {}  # saved by an earlier version
    for map_files in (True, False):
        with pytest.raises(DataLoss, match=LOST):
            bodies(split, fail_on_data_loss=True, map_files=map_files)
        assert bodies(split, fail_on_data_loss=False, map_files=map_files) == [2, 3, 4]
        lost = Split(QUEUE, 7, 10, state.location)
        assert bodies(lost, fail_on_data_loss=False, map_files=map_files) == []
    assert gone_back(states, {QUEUE: 15}, epochs_after(states, epochs)) == {}


def test_end_of_a_read_in_a_lost_past_is_not_committed(broker: RestoredBroker) -> None:
    with Admin(broker.nameservers) as admin:
        admin.put_group(SubscriptionGroupConfig("billing"))
    broker.send(*range(5))
    broker.copy()
    broker.send(*range(5, 10))
    epochs = epochs_after(describe_topic(broker.nameservers, TOPIC), {})
    kept, lost = Result(), Result()
    for result, end in ((kept, 4), (lost, 10)):
        remember_read(result, GroupRead(broker.nameservers, "billing", {QUEUE: end}, False, epochs))
    broker.restore()
    broker.send(*range(20, 30))
    with Admin(broker.nameservers) as admin:
        admin.put_group(SubscriptionGroupConfig("billing"))
        assert commit_read(kept) == {QUEUE: 4}
        with pytest.raises(CommitRefused, match=r"went back to offset 5 of this queue.*: read again"):
            commit_read(lost)
        assert admin.committed_offsets("billing", TOPIC) == {QUEUE: 4}
