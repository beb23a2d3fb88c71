"""The broker's background tasks: exceptions are counted; ten failures in a row stop the broker."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from actors import supervisor
from actors.broker.core.drain import BrokerDrain
from actors.broker.core.metadata.tables import BrokerTables
from actors.broker.core.metadata.topics import SCHEDULE_TOPIC
from actors.broker.core.stats import BrokerStats
from actors.broker.service import BrokerService
from actors.host.service_host import EXIT_SERVICE_FAILED, ServiceHost
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.wire.codes import RequestCode, ResponseCode
from store.common.clock import SystemClock
from store.common.json_file import JsonConfigFile
from store.message.record import decode_record
from store.message_store import MessageStore
from tests.actors.broker.brokers import HOLD_MS, Peer, run, settings_of, with_broker
from tests.eventually import eventually, eventually_async


def raising(*_: Any) -> None:
    raise ZeroDivisionError


def failures_of(peer: Peer) -> int:
    return int(str(peer.broker.describe()["background_task_failures"]))


def test_failing_task_is_counted_and_delays_no_other(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerDrain, "sweep", raising)

    async def story(peer: Peer) -> None:
        await peer.send("T", b"late", properties="DELAY\x011\x02")
        await eventually_async(lambda: failures_of(peer) >= 2)  # restarted, and failed again
        clock.advance(1_000)
        response = await peer.pull("T", wait_ms=HOLD_MS)
        assert decode_record(response.body).body == b"late"

    with_broker(story, settings_of(tmp_path), clock)


def test_permanently_failing_task_stops_the_broker_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BrokerDrain, "sweep", raising)
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_MS", 0)
    codes: list[int] = []
    settings = settings_of(tmp_path)
    host = ServiceHost(
        lambda: BrokerService(settings, SystemClock(), lambda reason: host.fail(reason)),
        exit_process=codes.append,
    )
    eventually(lambda: codes == [EXIT_SERVICE_FAILED])
    assert host.reason == "task drain-lease failed 10 times in a row, last with ZeroDivisionError: "
    assert not (settings.store_root / "abort").exists()  # the store was closed cleanly
    host.stop()


def test_full_disk_and_unreachable_nameserver_do_not_stop_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures of the disk and of nameservers are logged and retried; they are not failures of the task."""
    saves, registrations, reads = 0, 0, 0
    save_text, register_body = JsonConfigFile.save_text, BrokerTables.register_body
    get_message = MessageStore.get_message
    is_full = True

    def save(file: JsonConfigFile, text: bytes) -> None:
        nonlocal saves
        saves += 1
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save_text(file, text)

    def body(tables: BrokerTables, names: Any) -> Any:
        nonlocal registrations
        registrations += 1
        return register_body(tables, names)

    def read(store: MessageStore, topic: str, *arguments: Any) -> Any:
        nonlocal reads
        if is_full and topic == SCHEDULE_TOPIC:
            reads += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return get_message(store, topic, *arguments)

    monkeypatch.setattr(JsonConfigFile, "save_text", save)
    monkeypatch.setattr(BrokerTables, "register_body", body)
    monkeypatch.setattr(MessageStore, "get_message", read)
    monkeypatch.setattr("actors.broker.core.metadata.tables.SAVE_MS", 1)
    monkeypatch.setattr("actors.broker.features.delay.build.DELIVERY_INTERVAL_MS", 1)
    monkeypatch.setattr("actors.broker.core.registration.RETRY_MS", 1)
    attempts = supervisor.MAX_FAILURES_IN_A_ROW + 2

    async def story(peer: Peer) -> None:
        nonlocal is_full
        await peer.send("T", b"late", properties="DELAY\x011\x02")
        await eventually_async(lambda: min(saves, registrations, reads) > attempts)
        is_full = False
        assert failures_of(peer) == 0
        topics = peer.broker.settings.store_root / "config" / "topics.json"
        await eventually_async(topics.exists)
        assert decode_record((await peer.pull("T", wait_ms=HOLD_MS)).body).body == b"late"

    with_broker(story, settings_of(tmp_path, nameservers="127.0.0.1:1"))


def test_task_continues_after_one_failure(tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = 0

    def fail_once(_: BrokerStats) -> None:
        nonlocal samples
        samples += 1
        if samples == 2:  # the first call is part of the broker's start
            raise ZeroDivisionError

    monkeypatch.setattr("actors.broker.service.SAMPLE_STATS_MS", 1)
    monkeypatch.setattr(BrokerStats, "sample_totals", fail_once)

    async def story(peer: Peer) -> None:
        await eventually_async(lambda: samples > 3)
        assert failures_of(peer) == 1

    with_broker(story, settings_of(tmp_path), clock)


def test_stopping_a_broker_counts_no_failure(tmp_path: Path, clock) -> None:
    brokers: list[BrokerService] = []

    async def story(peer: Peer) -> None:
        await peer.send("T")
        brokers.append(peer.broker)

    with_broker(story, settings_of(tmp_path), clock)
    assert brokers[0].describe()["background_task_failures"] == 0


def test_failed_registration_is_repeated_immediately(
    tmp_path: Path, clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restarted task registers immediately, not only after the registration interval."""
    register_body = BrokerTables.register_body
    is_failing = False

    def body(tables: BrokerTables, names: Any) -> Any:
        nonlocal is_failing
        if is_failing:
            is_failing = False
            raise ZeroDivisionError
        return register_body(tables, names)

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
        response = await peer.ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            | {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
        )
        assert response.code == ResponseCode.SUCCESS
        await eventually_async(lambda: "T" in nameserver.routes.topics())
        assert failures_of(peer) == 1
        await peer.client.close()
        await broker.stop()
        await nameserver.stop()

    run(story)
