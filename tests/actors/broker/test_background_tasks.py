"""The broker's background tasks: an exception in one is counted, and none of them ends by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.broker.departure import Departure
from actors.broker.metadata.tables import BrokerTables
from actors.broker.service import BrokerService
from actors.broker.stats import BrokerStats
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.remoting.codes import RequestCode, ResponseCode
from store.clock import SystemClock
from store.message.record import decode_record
from tests.actors.broker.brokers import HOLD_MS, Peer, run, settings_of, with_broker
from tests.eventually import eventually_async


def raising(*_: Any) -> None:
    raise ZeroDivisionError


def failures_of(peer: Peer) -> int:
    return int(str(peer.broker.describe()["background_task_failures"]))


def test_a_duty_that_always_fails_is_counted_and_delays_no_other(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Departure, "sweep", raising)

    async def story(peer: Peer) -> None:
        await peer.send("T", b"late", properties="DELAY\x011\x02")
        await eventually_async(lambda: failures_of(peer) >= 2)  # started again, and failed again
        clock.advance(1_000)
        answer = await peer.pull("T", wait_ms=HOLD_MS)
        assert decode_record(answer.body).body == b"late"

    with_broker(story, settings_of(tmp_path), clock)


def test_a_duty_that_failed_once_goes_on(tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = 0

    def note_once_in_vain(_: BrokerStats) -> None:
        nonlocal notes
        notes += 1
        if notes == 2:  # the first is of the broker's start
            raise ZeroDivisionError

    monkeypatch.setattr("actors.broker.service.NOTE_STATS_MS", 1)
    monkeypatch.setattr(BrokerStats, "note_second", note_once_in_vain)

    async def story(peer: Peer) -> None:
        await eventually_async(lambda: notes > 3)
        assert failures_of(peer) == 1

    with_broker(story, settings_of(tmp_path), clock)


def test_stopping_a_broker_is_no_failure(tmp_path: Path, clock) -> None:
    brokers: list[BrokerService] = []

    async def story(peer: Peer) -> None:
        await peer.send("T")
        brokers.append(peer.broker)

    with_broker(story, settings_of(tmp_path), clock)
    assert brokers[0].describe()["background_task_failures"] == 0


def test_a_registration_that_failed_is_made_up_for(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the restart of its task, not only at the next regular registration half a minute later."""
    register_body = BrokerTables.register_body
    is_failing = False

    def body(tables: BrokerTables) -> bytes:
        nonlocal is_failing
        if is_failing:
            is_failing = False
            raise ZeroDivisionError
        return register_body(tables)

    monkeypatch.setattr(BrokerTables, "register_body", body)

    async def story() -> None:
        nonlocal is_failing
        nameserver = build_nameserver(NameserverSettings.model_validate({"listen_port": 0}), SystemClock())
        await nameserver.start()
        settings = settings_of(tmp_path, nameservers=nameserver.address, register_interval_ms=60_000)
        broker = BrokerService(settings, clock)
        await broker.start()
        peer = Peer(broker)
        is_failing = True
        answer = await peer.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
        )
        assert answer.code == ResponseCode.SUCCESS
        await eventually_async(lambda: "T" in nameserver.routes.topics())
        assert failures_of(peer) == 1
        await peer.client.close()
        await broker.stop()
        await nameserver.stop()

    run(story)
