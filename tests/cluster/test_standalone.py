"""The standalone program prints its addresses, serves, and stops at a signal."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
import uvloop

from actors import supervisor
from actors.rebalancer.coordinator import GroupCoordinator
from actors.transport.client import RemotingClient, SigningClient
from actors.wire.bodies.groups import SyncGroupReply, SyncGroupRequest
from actors.wire.bodies.routes import TopicRouteData
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.hot_headers import SendMessageHeader
from actors.wire.signing import Credentials, Signer
from cluster import standalone
from cluster.standalone import ServiceFailed, StandaloneCluster, StandaloneSettings, parse_arguments
from store.common.clock import SystemClock
from store.store_settings import StoreSettings
from tests.actors.broker.brokers import SMALL_STORE, TIMEOUT_MS, run
from tests.actors.broker.core.auth.access_peers import INNER, inner_file
from tests.conftest import RocketStore
from tests.eventually import LIMIT_S, eventually_async

REPO = Path(__file__).parents[2]


def test_options_are_parsed_and_invalid_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    given = "--store-root s --brokers 2 --flush async --no-auto-create-topics --json --nameserver-port 0"
    settings, as_json = parse_arguments([*given.split(), "--store", "commit_log_file_bytes=1048576"])
    assert (settings.brokers, settings.store.flush, settings.auto_create_topics) == (2, "async", False)
    assert (settings.store.commit_log_file_bytes, settings.nameserver_port, as_json) == (1 << 20, 0, True)
    with pytest.raises(SystemExit):
        parse_arguments([])
    assert "--store-root" in capsys.readouterr().err
    for wrong in ("--brokers=-1", "--brokers=0", "--nameserver-port=-1", "--broker-port=65536"):
        with pytest.raises(SystemExit):
            parse_arguments(["--store-root", "s", wrong])
        assert "is not a number from" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_arguments(["--store-root", "s", "--brokers", "2", "--broker", "metrics_port=11911"])
    assert "metrics_port=11911 is one port for 2 brokers" in capsys.readouterr().err


def test_slave_of_another_cluster_registers_next_to_its_master(tmp_path: Path) -> None:
    async def story() -> None:
        store = StoreSettings.model_validate(SMALL_STORE)
        cluster = StandaloneCluster(StandaloneSettings(tmp_path, store=store), SystemClock())
        await cluster.start()
        address = cluster.nameserver_address
        settings, _ = parse_arguments(["--store-root", str(tmp_path), "--slave-of", address])
        slave = StandaloneCluster(replace(settings, broker_port=0, store=store), SystemClock())
        try:
            await slave.start()
            described = slave.brokers[0].describe()
            assert (described["role"], described["broker_id"]) == ("slave", 2)
            assert slave.describe()["nameserver"] == address
            assert slave.rebalancer_address == ""
        finally:
            await slave.stop()
            await cluster.stop()

    run(story)


def test_two_brokers_a_nameserver_and_a_rebalancer_work_together(tmp_path: Path) -> None:
    async def story() -> None:
        settings = StandaloneSettings(tmp_path, brokers=2, store=StoreSettings.model_validate(SMALL_STORE))
        cluster = StandaloneCluster(settings, SystemClock())
        await cluster.start()
        client = RemotingClient(SystemClock())
        try:
            addresses = [broker.address for broker in cluster.brokers]
            for address in addresses:
                ext = SendMessageHeader("PG", "T", 0, default_topic_queue_nums=2).to_ext()
                command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext, b"hello")
                assert (await client.ask(address, command, TIMEOUT_MS)).ext["queueOffset"] == "0"
            assert await brokers_of(client, cluster.nameserver_address, 2) == ["broker-a", "broker-b"]
            body = SyncGroupRequest("G", "client-1", subscriptions={"T": "*"}).encode()
            synced = await client.ask(
                addresses[0], RemotingCommand(RayMQRequestCode.SYNC_GROUP, body=body), TIMEOUT_MS
            )
            assert SyncGroupReply.decode(synced.body).members == ["client-1"]
        finally:
            await client.close()
            await cluster.stop()

    run(story)


def test_super_user_of_the_broker_may_change_the_nameserver(tmp_path: Path) -> None:
    """RocketMQ's tools cannot sign as the inner user."""
    signer = Signer(Credentials("root", "root-secret"))
    put = {"namespace": "n", "key": "k", "value": "v"}

    async def story() -> None:
        settings = StandaloneSettings(
            tmp_path,
            store=StoreSettings.model_validate(SMALL_STORE),
            inner_credentials_file=inner_file(tmp_path),
        )
        cluster = StandaloneCluster(settings, SystemClock())
        await cluster.start()
        inner, client = SigningClient(SystemClock(), Signer(INNER)), RemotingClient(SystemClock())
        user = orjson.dumps({"password": "root-secret", "userType": "Super"})
        create = RemotingCommand(RequestCode.AUTH_CREATE_USER, {"username": "root"}, user)

        async def changed() -> bool:
            command = RemotingCommand(RequestCode.PUT_KV_CONFIG, dict(put))
            signer.sign_as_rocketmq(command)
            return (await client.invoke(cluster.nameserver_address, command, TIMEOUT_MS)).code == 0

        try:
            assert not await changed()
            assert (await inner.invoke(cluster.brokers[0].address, create, TIMEOUT_MS)).code == 0
            await eventually_async(changed)
        finally:
            await client.close()
            await inner.close()
            await cluster.stop()

    run(story)


async def brokers_of(client: RemotingClient, nameserver: str, count: int) -> list[str]:
    """Wait until topic T has `count` brokers, and return their names."""

    async def names() -> list[str]:
        request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        found = await client.invoke(nameserver, request, TIMEOUT_MS)
        queues = TopicRouteData.decode(found.body).queue_datas if found.code == 0 else []
        return sorted(data.broker_name for data in queues) if len(queues) == count else []

    return await eventually_async(names)


def test_rocketmq_store_is_opened_only_with_adopt_store(
    tmp_path: Path, clean_store: Callable[[], RocketStore]
) -> None:
    stores = tmp_path / "stores"
    stores.mkdir()
    clean_store().root.rename(stores / "broker-a-0")
    sizes = {
        "commit_log_file_bytes": 1 << 20,
        "consume_queue_file_bytes": 20_000,
        "index_slots": 5000,
        "index_entries": 20_000,
    }
    given = f"--nameserver-port 0 --broker-port 0 --no-rebalancer --store-root {stores}".split()
    for name, value in sizes.items():
        given += ["--store", f"{name}={value}"]
    command = [sys.executable, "-m", "cluster.standalone", *given]
    refused = subprocess.run(
        command, cwd=REPO, capture_output=True, text=True, timeout=4 * LIMIT_S, check=False
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "set adopt_store: true" in refused.stderr.splitlines()[-1]
    with subprocess.Popen(
        [*command, "--adopt-store"], cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"READY ")
        process.terminate()
        assert process.wait(LIMIT_S) == 0


def test_program_exits_with_the_reason_if_a_service_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_coordinator: GroupCoordinator) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(GroupCoordinator, "expire", fail)
    monkeypatch.setattr(supervisor, "MAX_FAILURES_IN_A_ROW", 1)
    settings = StandaloneSettings(tmp_path, brokers=0)

    async def do_nothing(_cluster: StandaloneCluster) -> None:
        pass

    with pytest.raises(ServiceFailed, match="task lease-expiry failed 1 times in a row"):
        uvloop.run(asyncio.wait_for(standalone.run(settings, do_nothing), LIMIT_S))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_program_prints_ready_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    given = f"--json --nameserver-port 0 --broker-port 0 --store-root {tmp_path}"
    command = [sys.executable, "-m", "cluster.standalone", *given.split()]
    with subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        described = orjson.loads(process.stdout.readline())
        assert process.stdout.readline() == f"READY {described['nameserver']}\n".encode()
        assert list(described["brokers"]) == ["broker-a"]
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
    assert not (tmp_path / "broker-a-0" / "abort").exists()
