"""`BrokerExports`: what the autoscaler does with the messages of a drained broker."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds
import pytest

from cluster.autoscale.broker_export import BrokerExports
from cluster.autoscale.controller import BrokerUnavailable
from tests.eventually import eventually
from tests.jobs.conftest import TOPIC, Orders

pytestmark = pytest.mark.slow


def test_messages_of_a_broker_are_exported_in_the_background(orders: Orders, tmp_path: Path) -> None:
    exports = BrokerExports(tmp_path, [orders.nameservers])
    exports.begin("broker-b", [TOPIC])
    assert exports.is_running("broker-b")
    eventually(lambda: exports.finish("broker-b"), "the export")
    assert not exports.is_running("broker-b")
    (archive,) = (tmp_path / TOPIC).glob("broker-b-*")
    found = ds.dataset(archive, format="parquet").to_table(columns=["brokerName"])["brokerName"].to_pylist()
    assert found
    assert set(found) == {"broker-b"}


def test_failed_export_is_reported_with_its_topic_and_may_begin_again(orders: Orders, tmp_path: Path) -> None:
    exports = BrokerExports(tmp_path, [orders.nameservers])
    exports.begin("broker-b", ["no-such-topic"])
    with pytest.raises(BrokerUnavailable, match="cannot export topic no-such-topic of broker-b"):
        eventually(lambda: exports.finish("broker-b"), "the export")
    assert not exports.is_running("broker-b")
