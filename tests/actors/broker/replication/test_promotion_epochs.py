"""Epochs of a group: a former master is refused by nameservers, by slaves and by its own store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.broker.replication.promotion_epochs import PromotionEpochs
from actors.broker.service import BrokerService
from actors.raft.epoch_file import EPOCH_FILE_CHECKPOINT, epoch_file_text, read_epochs
from actors.wire.codes import RequestCode, ResponseCode
from store.common.clock import SystemClock
from store.store_errors import StoreError
from tests.actors.broker.brokers import Peer, registered_broker, run, settings_of, slave_of, with_broker
from tests.actors.broker.replication.ha.slaves import master_of
from tests.actors.broker.replication.ha.test_slave_registration import ids_of
from tests.eventually import eventually_async
from tests.ports import free_port


def epochs_of(peer: Peer) -> list[tuple[int, int]]:
    return read_epochs(peer.broker.settings.store_root / EPOCH_FILE_CHECKPOINT)


def state_of(slave: Peer) -> str:
    return str(slave.broker.describe()["replication_state"])


def replicated(epoch: int, **settings: Any) -> dict[str, Any]:
    return {"replication": "async", "ha_listen_port": free_port(), "group_epoch": epoch, **settings}


def test_each_promotion_begins_an_epoch_at_the_end_of_the_log(tmp_path: Path) -> None:
    ends: list[int] = []

    async def story(peer: Peer) -> None:
        await peer.send("T")
        ends.append(peer.store.positions.written)
        cache = orjson.loads((await peer.ask(RequestCode.GET_BROKER_EPOCH_CACHE)).body)
        assert (cache["brokerName"], cache["brokerId"], cache["maxOffset"]) == ("broker-a", 0, ends[-1])
        assert [(each["epoch"], each["startOffset"]) for each in cache["epochList"]] == epochs_of(peer)

    for epoch in (3, 3, 7):  # the second one is a restart of the same master
        with_broker(story, settings_of(tmp_path, group_epoch=epoch))
    assert read_epochs(tmp_path / "store" / EPOCH_FILE_CHECKPOINT) == [(3, 0), (7, ends[1])]


def test_epochs_after_the_end_of_the_log_are_dropped_by_a_promotion(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, group_epoch=5)
    settings.store_root.mkdir()
    path = settings.store_root / EPOCH_FILE_CHECKPOINT
    path.write_text(epoch_file_text([(1, 0), (2, 100), (4, 200)]))
    PromotionEpochs(settings).begin(200)
    assert read_epochs(path) == [(1, 0), (2, 100), (5, 200)]


def test_store_of_a_former_master_is_refused_with_the_remedy(tmp_path: Path) -> None:
    async def story() -> None:
        settings = settings_of(tmp_path, group_epoch=3)
        settings.store_root.mkdir()
        (settings.store_root / EPOCH_FILE_CHECKPOINT).write_text(epoch_file_text([(1, 0), (4, 900)]))
        with pytest.raises(StoreError, match=r"group_epoch 3 is lower than epoch 4 .* role: slave"):
            await BrokerService(settings, SystemClock()).start()

    run(story)


def test_broker_without_group_epoch_refuses_the_request(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        response = await peer.ask(RequestCode.GET_BROKER_EPOCH_CACHE)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert "group_epoch is not set" in (response.remark or "")
        assert epochs_of(peer) == []

    with_broker(story, settings_of(tmp_path))


def test_nameserver_refuses_a_former_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with registered_broker(tmp_path / "new", **replicated(2)) as (nameserver, master):
            former = settings_of(tmp_path / "old", nameservers=nameserver.address, group_epoch=1)
            broker = BrokerService(former, SystemClock())
            await broker.start()
            try:
                assert await ids_of(nameserver, master) == {0: master.broker.address}
            finally:
                await broker.stop()
            assert await ids_of(nameserver, master) == {0: master.broker.address}

    run(story)


def test_slave_adopts_the_epochs_of_its_master(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            registered_broker(tmp_path, **replicated(2)) as (_, master),
            slave_of(master, tmp_path, group_epoch=2) as slave,
        ):
            await eventually_async(lambda: state_of(slave) == "following")
            assert epochs_of(slave) == epochs_of(master) == [(2, 0)]

    run(story)


def test_slave_does_not_follow_a_master_of_a_lower_epoch(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            registered_broker(tmp_path, **replicated(2)) as (_, master),
            slave_of(master, tmp_path, group_epoch=3) as slave,
        ):
            await master.send("T")
            await eventually_async(lambda: "former master" in state_of(slave))
            assert "has epoch 2, but epoch 3 is known" in state_of(slave)
            assert slave.store.positions.written == 0
            assert epochs_of(slave) == []

    run(story)


def test_slave_waits_for_a_master_that_has_no_epochs(tmp_path: Path) -> None:
    async def story() -> None:
        plain = master_of(tmp_path).model_dump(include={"replication", "ha_listen_port"})
        async with (
            registered_broker(tmp_path, **plain) as (_, master),
            slave_of(master, tmp_path, group_epoch=1) as slave,
        ):
            await eventually_async(lambda: "group_epoch is not set" in state_of(slave))

    run(story)
