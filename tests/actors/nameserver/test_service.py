"""A nameserver over its socket, used like brokers and clients do."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest
import uvloop

from actors import supervisor
from actors.host.service_host import EXIT_SERVICE_FAILED, ServiceHost
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.route_table import RouteTable
from actors.nameserver.service import NameserverService, build_nameserver
from actors.transport.client import RemotingClient
from actors.wire.bodies.routes import (
    PERM_READ,
    ClusterInfo,
    RegisterBrokerBody,
    TopicRouteData,
    decode_kv_table,
    decode_topic_list,
    encode_data_version,
)
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerHeader
from actors.wire.properties_text import parse_properties
from actors.wire.remoting_errors import Refused
from store.common.clock import Clock, SystemClock
from store.message.data_version import DataVersion
from tests.eventually import LIMIT_S, eventually, eventually_async

TIMEOUT_MS = int(LIMIT_S * 1000)
Ask = Callable[..., Awaitable[RemotingCommand]]
BODY = RegisterBrokerBody(
    DataVersion(1), {"T": {"topicName": "T", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}}
)
BROKER = RegisterBrokerHeader("broker-a", "127.0.0.1:10911", "DefaultCluster", 0)


def with_nameserver(
    story: Callable[[NameserverService, Ask], Awaitable[None]],
    data_dir: Path | None = None,
    clock: Clock | None = None,
    **settings: object,
) -> None:
    async def run() -> None:
        given = {"listen_port": 0, "data_dir": data_dir, **settings}
        service = build_nameserver(NameserverSettings.model_validate(given), clock or SystemClock())
        await service.start()
        client = RemotingClient(SystemClock())

        async def ask(code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
            return await client.ask(service.address, RemotingCommand(code, ext or {}, body), TIMEOUT_MS)

        try:
            await story(service, ask)
        finally:
            await client.close()
            await service.stop()

    async def within() -> None:
        await asyncio.wait_for(run(), LIMIT_S)

    uvloop.run(within())


def test_a_broker_registers_and_clients_find_its_topics() -> None:
    async def story(service: NameserverService, ask: Ask) -> None:
        await ask(RequestCode.REGISTER_BROKER, BROKER.to_ext(), BODY.encode())
        route = TopicRouteData.decode((await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body)
        assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:10911"}
        assert [(data.broker_name, data.write_queue_nums) for data in route.queue_datas] == [("broker-a", 4)]
        info = ClusterInfo.decode((await ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
        assert info.clusters == {"DefaultCluster": ["broker-a"]}
        everything = await ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert decode_topic_list(everything.body) == ["T"]
        of_cluster = await ask(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"})
        assert decode_topic_list(of_cluster.body) == ["T"]
        system = await ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        assert decode_topic_list(system.body) == ["DefaultCluster", "broker-a"]
        assert orjson.loads(system.body)["brokerAddr"] == "127.0.0.1:10911"
        assert list(orjson.loads(everything.body)) == ["topicList"]
        with pytest.raises(Refused, match="No topic route info in name server for the topic: U") as error:
            await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "U"})
        assert error.value.code == 17

    with_nameserver(story)


def test_disconnected_or_unregistered_broker_is_removed() -> None:
    async def story(service: NameserverService, ask: Ask) -> None:
        broker = RemotingClient(SystemClock())
        register = RemotingCommand(RequestCode.REGISTER_BROKER, BROKER.to_ext(), BODY.encode())
        await broker.ask(service.address, register, TIMEOUT_MS)
        await broker.close()
        await eventually_async(lambda: not service.routes.topics())
        await ask(RequestCode.REGISTER_BROKER, BROKER.to_ext(), BODY.encode())
        unregister = {
            key: BROKER.to_ext()[key] for key in ("brokerName", "brokerAddr", "clusterName", "brokerId")
        }
        await ask(RequestCode.UNREGISTER_BROKER, unregister)
        assert service.routes.topics() == []

    with_nameserver(story)


def test_silent_broker_is_removed_and_its_connection_closed(clock) -> None:
    async def story(service: NameserverService, ask: Ask) -> None:
        await ask(RequestCode.REGISTER_BROKER, BROKER.to_ext(), BODY.encode())
        clock.advance(100_000)
        await ask(RequestCode.BROKER_HEARTBEAT, {"brokerAddr": BROKER.broker_addr})
        clock.advance(100_000)
        service.expire_brokers()
        assert service.routes.topics() == ["T"]
        clock.advance(20_001)
        service.expire_brokers()
        assert service.routes.topics() == []
        assert not service.server.connections

    with_nameserver(story, clock=clock)


def test_changed_broker_expiry_applies_to_the_next_registration(clock) -> None:
    async def story(service: NameserverService, ask: Ask) -> None:
        service.live.update({"broker_expiry_ms": 5_000})
        await ask(RequestCode.REGISTER_BROKER, BROKER.to_ext(), BODY.encode())
        clock.advance(5_001)
        service.expire_brokers()
        assert service.routes.topics() == []

    with_nameserver(story, clock=clock)


def test_expiry_continues_after_a_failure(clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(service: NameserverService, ask: Ask) -> None:
        def fail(_now_ns: int) -> None:
            monkeypatch.undo()
            raise ZeroDivisionError

        await ask(RequestCode.REGISTER_BROKER, BROKER.to_ext(), BODY.encode())
        monkeypatch.setattr(service.routes, "expire", fail)
        clock.advance(120_001)
        await eventually_async(lambda: not service.routes.topics())
        assert service.describe()["background_task_failures"] == 1

    with_nameserver(story, clock=clock, scan_interval_ms=1)


def test_registration_of_a_java_broker_is_accepted() -> None:
    async def story(service: NameserverService, ask: Ask) -> None:
        header = {**BROKER.to_ext(), "enableActingMaster": "false", "heartbeatTimeoutMillis": "10000"}
        body = BODY.encode()
        right = str(zlib.crc32(body) & 0x7FFFFFFF)
        with pytest.raises(Refused, match="CRC"):
            await ask(RequestCode.REGISTER_BROKER, {**header, "bodyCrc32": "5"}, body)
        await ask(RequestCode.REGISTER_BROKER, {**header, "bodyCrc32": right}, body)
        version = encode_data_version(BODY.data_version)
        where = {"brokerAddr": BROKER.broker_addr, "brokerName": "broker-a", "clusterName": "DefaultCluster"}
        same = await ask(RequestCode.QUERY_DATA_VERSION, {**where, "brokerId": "0"}, version)
        assert same.ext["changed"] == "false"
        other = await ask(
            RequestCode.QUERY_DATA_VERSION, {**where, "brokerId": "0"}, encode_data_version(DataVersion(9))
        )
        assert other.ext["changed"] == "true"
        assert orjson.loads(other.body) == orjson.loads(version)
        slave = await ask(
            RequestCode.REGISTER_BROKER,
            RegisterBrokerHeader("broker-a", "127.0.0.1:10921", "DefaultCluster", 1).to_ext(),
            body,
        )
        assert slave.ext["masterAddr"] == BROKER.broker_addr

    with_nameserver(story)


def test_write_permission_is_wiped_and_topic_is_deleted() -> None:
    async def story(service: NameserverService, ask: Ask) -> None:
        await ask(RequestCode.REGISTER_BROKER, BROKER.to_ext(), BODY.encode())
        wiped = await ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
        assert wiped.ext == {"wipeTopicCount": "1"}
        route = TopicRouteData.decode((await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body)
        assert route.queue_datas[0].perm == PERM_READ
        added = await ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
        assert added.ext == {"addTopicCount": "1"}
        await ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
        with pytest.raises(Refused):
            await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})

    with_nameserver(story)


def test_kv_config_survives_a_restart(tmp_path: Path) -> None:
    async def put(service: NameserverService, ask: Ask) -> None:
        for key in ("T", "U"):
            ext = {"namespace": "ORDER_TOPIC_CONFIG", "key": key, "value": "broker-a:4"}
            await ask(RequestCode.PUT_KV_CONFIG, ext)
        await ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "U"})
        await ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "none", "key": "U"})

    async def get(service: NameserverService, ask: Ask) -> None:
        found = await ask(RequestCode.GET_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"})
        assert found.ext == {"value": "broker-a:4"}
        listed = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
        assert decode_kv_table(listed.body) == {"T": "broker-a:4"}
        for code, ext in (
            (RequestCode.GET_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "U"}),
            (RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "none"}),
        ):
            with pytest.raises(Refused) as error:
                await ask(code, ext)
            assert error.value.code == 22
        registered = await ask(RequestCode.REGISTER_BROKER, BROKER.to_ext(), BODY.encode())
        assert decode_kv_table(registered.body) == {"T": "broker-a:4"}
        for is_ordered, order_conf in (("false", None), ("true", "broker-a:4")):
            changes = f"orderMessageEnable={is_ordered}".encode()
            await ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=changes)
            found = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            assert TopicRouteData.decode(found.body).order_topic_conf == order_conf
        await ask(RequestCode.DELETE_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"})
        listed = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})
        assert decode_kv_table(listed.body) == {}

    with_nameserver(put, tmp_path)
    with_nameserver(get, tmp_path)


def test_settings_accept_rocketmqs_keys() -> None:
    settings = NameserverSettings.model_validate({"listenPort": 1234, "scanNotActiveBrokerInterval": 7})
    assert (settings.listen_port, settings.scan_interval_ms) == (1234, 7)


def test_namesrv_config_is_read_and_updated_as_by_mqadmin() -> None:
    async def story(service: NameserverService, ask: Ask) -> None:
        async def settings() -> dict[str, str]:
            return parse_properties(bytes((await ask(RequestCode.GET_NAMESRV_CONFIG)).body).decode())

        async def version() -> int:
            return int(orjson.loads((await ask(RequestCode.GET_NAMESRV_CONFIG)).ext["version"])["counter"])

        initial = await settings()
        assert initial["scanNotActiveBrokerInterval"] == "5000"
        assert (initial["listenPort"], initial["orderMessageEnable"], initial["data_dir"]) == (
            "0",
            "false",
            "",
        )
        everything = (await ask(RequestCode.GET_NAMESRV_CONFIG)).body
        await ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=bytes(everything))
        assert await version() == 0

        await ask(
            RequestCode.UPDATE_NAMESRV_CONFIG, body=b"scanNotActiveBrokerInterval=70\nenableTopicList=true"
        )
        assert (await settings())["scanNotActiveBrokerInterval"] == "70"
        assert service.settings.scan_interval_ms == 70
        assert await version() == 1
        for body, remark in (
            (b"scanNotActiveBrokerInterval=80\nlistenPort=1", "listen_port: a change needs a restart"),
            (
                b"scanNotActiveBrokerInterval=80\nclusterTest=true",
                "clusterTest is false: a constant in RayMQ",
            ),
            (b"scanNotActiveBrokerInterval=80\nnoSuchKey=1", "noSuchKey: unknown setting"),
            (b"scanNotActiveBrokerInterval=0", "greater than or equal to 1"),
            (b"", "send lines of key=value"),
        ):
            with pytest.raises(Refused, match=remark):
                await ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
        assert (await settings())["scanNotActiveBrokerInterval"] == "70"

    with_nameserver(story)


def test_permanently_failing_expiry_stops_the_nameserver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_table: RouteTable, _now_ns: int) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(RouteTable, "expire", fail)
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_MS", 0)
    settings = NameserverSettings(listen_port=0, scan_interval_ms=1)
    codes: list[int] = []
    host = ServiceHost(
        lambda: build_nameserver(settings, SystemClock(), lambda reason: host.fail(reason)),
        exit_process=codes.append,
    )
    eventually(lambda: codes == [EXIT_SERVICE_FAILED])
    assert host.reason == (
        "task broker-expiry failed 10 times in a row, last with ZeroDivisionError: division by zero"
    )
    host.stop()
