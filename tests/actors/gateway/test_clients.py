"""The rpcs of producers through a gateway, with the messages that a remoting client then reads."""

from __future__ import annotations

import gzip
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from actors.gateway import clients, messages
from actors.gateway.messages import message_of
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import (
    Address,
    AddressScheme,
    ClientType,
    Code,
    Encoding,
    Endpoints,
    Message,
    MessageType,
    Permission,
    Publishing,
    Resource,
    Settings,
    TransactionResolution,
    TransactionSource,
)
from actors.wire.codes import RequestCode
from actors.wire.header import ITEMS_MAX
from store.message.compression import decompress
from store.message.properties import MessageConst
from store.message.recall_handle import RecallHandle
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway
from tests.eventually import eventually_async

ENDPOINTS = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="192.0.2.7", port=8081)])


def stamp(milliseconds: int) -> Timestamp:
    found = Timestamp()
    found.FromMilliseconds(milliseconds)
    return found


def settings(client_type: ClientType = ClientType.PRODUCER, *topics: str) -> rpc.TelemetryCommand:
    publishing = Publishing(topics=[Resource(name=topic) for topic in topics])
    return rpc.TelemetryCommand(settings=Settings(client_type=client_type, publishing=publishing))


def test_route_has_the_queues_of_the_topic_at_the_clients_endpoints(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Fifo", "FIFO", queues=3)
        found = await client.call(rpc.QueryRouteRequest(topic=Resource(name="Fifo"), endpoints=ENDPOINTS))
        assert found.status.code == Code.OK
        assert [each.id for each in found.message_queues] == [0, 1, 2]
        for queue in found.message_queues:
            assert (queue.permission, queue.broker.name) == (Permission.READ_WRITE, "broker-a")
            assert queue.broker.endpoints == ENDPOINTS
            assert list(queue.accept_message_types) == [MessageType.FIFO]
        missing = await client.call(rpc.QueryRouteRequest(topic=Resource(name="None"), endpoints=ENDPOINTS))
        assert missing.status.code == Code.TOPIC_NOT_FOUND

    with_gateway(tmp_path, story)


def test_message_is_stored_with_its_properties(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        sent = message(tag="t", keys=["k1", "k2"], trace_context="00-1-2-01", body_encoding=Encoding.IDENTITY)
        sent.user_properties["colour"] = "blau – blue"
        result = await client.send(sent)
        assert (result.status.code, result.entries[0].message_id) == (Code.OK, "01ABC")
        assert result.entries[0].offset == 0
        [stored] = await client.stored("Plain")
        assert stored.body == b"body"
        expected = {
            "UNIQ_KEY": "01ABC", "TAGS": "t", "KEYS": "k1 k2", "colour": "blau – blue",
            "TRACE_CONTEXT": "00-1-2-01",
        }  # fmt: skip
        assert expected.items() <= stored.properties.items()
        back = message_of(stored, sent.topic)
        assert (back.body, back.topic, dict(back.user_properties)["colour"]) == (
            b"body", sent.topic, "blau – blue",
        )  # fmt: skip
        system = back.system_properties
        assert (system.message_id, system.tag, list(system.keys)) == ("01ABC", "t", ["k1", "k2"])
        assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"

    with_gateway(tmp_path, story)


def test_several_messages_keep_their_order_in_one_queue(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        result = await client.send(*(message(body=b"%d" % n, message_id=f"id{n}") for n in range(20)))
        assert [entry.message_id for entry in result.entries] == [f"id{n}" for n in range(20)]
        assert result.status.code == Code.OK
        assert [each.body for each in await client.stored("Plain")] == [b"%d" % n for n in range(20)]

    with_gateway(tmp_path, story)


def test_message_that_is_too_large_does_not_hide_the_results_of_others(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        result = await client.send(message(), message(message_id="large", trace_context="x" * 40_000))
        assert result.status.code == Code.MULTIPLE_RESULTS
        assert [(each.message_id, each.status.code) for each in result.entries] == [
            ("01ABC", Code.OK), ("large", Code.MESSAGE_PROPERTIES_TOO_LARGE),
        ]  # fmt: skip
        assert len(await client.stored("Plain")) == 1

    with_gateway(tmp_path, story)


def test_messages_of_a_group_go_to_one_queue(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Fifo", "FIFO", queues=4)
        for n in range(12):
            sent = await client.send(message("Fifo", b"%d" % n, message_group="order-7"))
            assert sent.status.code == Code.OK
        stored = await client.stored("Fifo", 4)
        assert [each.body for each in stored] == [b"%d" % n for n in range(12)]
        assert len({each.queue_id for each in stored}) == 1

    with_gateway(tmp_path, story)


def test_gzip_body_is_stored_plain(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        sent = await client.send(message(body=gzip.compress(b"a" * 1000), body_encoding=Encoding.GZIP))
        assert sent.status.code == Code.OK
        assert [each.body for each in await client.stored("Plain")] == [b"a" * 1000]
        bad = await client.send(message(body=b"no gzip", body_encoding=Encoding.GZIP))
        assert bad.status.code == Code.MESSAGE_CORRUPTED

    with_gateway(tmp_path, story)


def test_gzip_bodies_that_need_too_much_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(client: GrpcClient) -> None:
        large = message(body=gzip.compress(bytes(6_000)), body_encoding=Encoding.GZIP)
        assert (await client.send(large, large)).status.code == Code.MESSAGE_BODY_TOO_LARGE
        for _ in range(2):  # one at a time
            assert (await client.send(large)).status.code == Code.OK
        assert [len(each.body) for each in await client.stored("Plain")] == [6_000, 6_000]

    monkeypatch.setattr(messages, "INFLATED_BYTES_MAX", 10_000)
    with_gateway(tmp_path, story)


def test_delayed_message_is_delivered_or_recalled(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Later", "DELAY")
        now_ms = client.cluster.brokers[0].graph.loop.server.hub.clock.wall_ms()
        soon = await client.send(message("Later", b"soon", delivery_timestamp=stamp(now_ms + 1000)))
        later = await client.send(message("Later", b"later", delivery_timestamp=stamp(now_ms + 3_600_000)))
        assert (soon.status.code, later.status.code) == (Code.OK, Code.OK)
        handle = later.entries[0].recall_handle
        recalled = await client.call(
            rpc.RecallMessageRequest(topic=Resource(name="Later"), recall_handle=handle)
        )
        assert (recalled.status.code, recalled.message_id) == (Code.OK, "01ABC")
        stopped = RecallHandle("Later", "broker-z", now_ms, "01ABC").encode()
        for handle in ("x", stopped):
            request = rpc.RecallMessageRequest(topic=Resource(name="Later"), recall_handle=handle)
            assert (await client.call(request)).status.code == Code.BAD_REQUEST
        bodies: list[bytes] = []

        async def arrived() -> bool:
            bodies[:] = [each.body for each in await client.stored("Later")]
            return bool(bodies)

        while not await arrived():
            pass
        assert bodies == [b"soon"]

    with_gateway(tmp_path, story)


@pytest.mark.parametrize("resolution", [TransactionResolution.COMMIT, TransactionResolution.ROLLBACK])
def test_transaction_is_ended_by_its_producer(tmp_path: Path, resolution: TransactionResolution) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Tx", "TRANSACTION")
        sent = await client.send(message("Tx", message_type=MessageType.TRANSACTION))
        assert sent.status.code == Code.OK
        assert await client.stored("Tx") == []
        request = rpc.EndTransactionRequest(
            topic=Resource(name="Tx"), message_id="01ABC", transaction_id=sent.entries[0].transaction_id,
            resolution=resolution, source=TransactionSource.SOURCE_CLIENT,
        )  # fmt: skip
        assert (await client.call(request)).status.code == Code.OK
        stored = [each.properties[MessageConst.UNIQ_KEY] for each in await client.stored("Tx")]
        assert stored == (["01ABC"] if resolution == TransactionResolution.COMMIT else [])
        for forged in ("unknown", "broker-a 0 0 01ABC", "broker-a 9999999 0 01ABC"):
            request.transaction_id = forged
            assert (await client.call(request)).status.code == Code.INVALID_TRANSACTION_ID
        request.transaction_id = "broker-z 0 0 01ABC"
        assert (await client.call(request)).status.code == Code.BAD_REQUEST  # as RocketMQ's proxy 5.3.3

    with_gateway(tmp_path, story)


def test_open_transaction_is_checked_with_its_producer(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Tx", "TRANSACTION")
        stream = client.telemetry()
        await stream.write(settings(ClientType.PRODUCER, "Tx"))
        assert (await stream.read()).status.code == Code.OK
        await client.send(message("Tx", b"half", message_type=MessageType.TRANSACTION))
        command = (await stream.read()).recover_orphaned_transaction_command
        assert (command.message.body, command.message.topic.name) == (b"half", "Tx")
        request = rpc.EndTransactionRequest(
            topic=Resource(name="Tx"), message_id="01ABC", transaction_id=command.transaction_id,
            resolution=TransactionResolution.COMMIT, source=TransactionSource.SOURCE_SERVER_CHECK,
        )  # fmt: skip
        assert (await client.call(request)).status.code == Code.OK
        assert [each.body for each in await client.stored("Tx")] == [b"half"]

    with_gateway(tmp_path, story, {"transaction_timeout_ms": "100", "transaction_check_interval_ms": "200"})


def test_body_of_a_checked_transaction_is_decompressed_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(body: bytes, sys_flag: int) -> bytes:
        threads.append(threading.current_thread().name)
        return decompress(body, sys_flag)

    async def story(client: GrpcClient) -> None:
        await client.create_topic("Tx", "TRANSACTION")
        stream = client.telemetry()
        await stream.write(settings(ClientType.PRODUCER, "Tx"))
        assert (await stream.read()).status.code == Code.OK
        await client.send(message("Tx", b"half", message_type=MessageType.TRANSACTION))
        assert (await stream.read()).recover_orphaned_transaction_command.message.body == b"half"

    monkeypatch.setattr("actors.gateway.clients.decompress", noted)
    with_gateway(tmp_path, story, {"transaction_timeout_ms": "100", "transaction_check_interval_ms": "200"})
    assert {name.partition("_")[0] for name in threads} == {"grpc-decoder"}


def test_settings_of_a_producer_are_completed(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        stream = client.telemetry()
        await stream.write(settings(ClientType.PRODUCER, "Plain"))
        answer = await stream.read()
        assert answer.status.code == Code.OK
        assert answer.settings.publishing.max_body_size == 4 * 1024 * 1024
        assert answer.settings.backoff_policy.max_attempts == 3
        assert answer.settings.backoff_policy.exponential_backoff.initial.ToMilliseconds() == 10
        await stream.write(settings(ClientType.PULL_CONSUMER))
        assert (await stream.read()).status.code == Code.UNRECOGNIZED_CLIENT_TYPE
        beat = rpc.HeartbeatRequest(client_type=ClientType.PRODUCER)
        assert (await client.call(beat)).status.code == Code.OK
        assert (await client.call(rpc.NotifyClientTerminationRequest())).status.code == Code.OK
        service = client.cluster
        assert service.describe()["gateway"]
        await stream.done_writing()

    with_gateway(tmp_path, story)


def test_settings_that_need_too_much_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(client: GrpcClient) -> None:
        first, second = client.telemetry(), client.telemetry()
        for command in (settings(ClientType.PRODUCER, "Plain"), settings(ClientType.PRODUCER, "Plain", "B")):
            await first.write(command)  # the second one replaces the first
            assert (await first.read()).status.code == Code.OK
        await second.write(settings(ClientType.PRODUCER, "Plain"))
        assert (await second.read()).status.code == Code.TOO_MANY_REQUESTS
        long_name = settings(ClientType.PRODUCER)
        long_name.settings.user_agent.hostname = "x" * 300_000
        await first.write(long_name)
        assert (await first.read()).status.code == Code.PAYLOAD_TOO_LARGE
        await second.write(settings(ClientType.PRODUCER, "Plain"))  # there is memory again
        assert (await second.read()).status.code == Code.OK

    monkeypatch.setattr(clients, "KEPT", replace(clients.KEPT, limit=4 * clients.ENTRY_BYTES))
    with_gateway(tmp_path, story)


@pytest.mark.extended
def test_more_topics_than_a_heartbeat_can_have_are_announced(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        names = [f"T{n}" for n in range(ITEMS_MAX + 10)]
        config = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        body = orjson.dumps({"topicConfigList": [{"topicName": name, **config} for name in names]})
        created = await client.peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert created.code == 0, created.remark
        streams = [client.telemetry(), client.telemetry()]
        for stream, some in zip(streams, (names[:500], names[500:]), strict=True):
            await stream.write(settings(ClientType.PRODUCER, *some))
            assert (await stream.read()).status.code == Code.OK

        async def are_known() -> bool:
            response = await client.peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)
            return set(names) <= orjson.loads(response.body)["data"].keys()

        await eventually_async(are_known)

    with_gateway(tmp_path, story)


LONG = "x" * 70
BAD: dict[str, tuple[Message, Code]] = {
    "no body": (message(body=b""), Code.MESSAGE_BODY_EMPTY),
    "long body": (message(body=bytes(4 * 1024 * 1024 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
    "no id": (message(message_id=" "), Code.ILLEGAL_MESSAGE_ID),
    "long id": (message(message_id="x" * 256), Code.ILLEGAL_MESSAGE_ID),
    "control in id": (message(message_id="a\x01b"), Code.ILLEGAL_MESSAGE_ID),
    "blank tag": (message(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
    "bar in tag": (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
    "control in tag": (message(tag="a\x02"), Code.ILLEGAL_MESSAGE_TAG),
    "blank key": (message(keys=[""]), Code.ILLEGAL_MESSAGE_KEY),
    "control in key": (message(keys=["a\n"]), Code.ILLEGAL_MESSAGE_KEY),
    "long group": (message(message_group=LONG), Code.ILLEGAL_MESSAGE_GROUP),
    "blank group": (message(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
    "late delivery": (message(delivery_timestamp=stamp(10**14)), Code.ILLEGAL_DELIVERY_TIME),
    "long recovery": (
        message(orphaned_transaction_recovery_duration=Duration(seconds=4000)), Code.BAD_REQUEST,
    ),
    "bad topic": (message("a b"), Code.ILLEGAL_TOPIC),
    "empty topic": (message(""), Code.ILLEGAL_TOPIC),
    "unknown topic": (message("None"), Code.TOPIC_NOT_FOUND),
    "wrong type": (message("Fifo"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "no queue": (message("Closed"), Code.FORBIDDEN),
}  # fmt: skip


def with_properties(properties: dict[str, str]) -> Message:
    found = message()
    found.user_properties.update(properties)
    return found


BAD |= {
    "reserved property": (with_properties({"UNIQ_KEY": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "empty property": (with_properties({"": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "control in value": (with_properties({"a": "\x01"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    "many properties": (
        with_properties({f"p{n}": "" for n in range(129)}),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    "long properties": (with_properties({"a": "x" * 17_000}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
}


def test_invalid_messages_are_refused_with_rocketmqs_codes(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        await client.create_topic("Fifo", "FIFO")
        await client.create_topic("Closed", perm=4)
        for name, (bad, code) in BAD.items():
            result = await client.send(bad)
            assert (name, Code.Name(result.status.code)) == (name, Code.Name(code))
            assert result.status.message
        assert (await client.send()).status.code == Code.MESSAGE_CORRUPTED
        two = await client.send(message(), message("Fifo", message_group="g"))
        assert two.status.code == Code.MESSAGE_CORRUPTED
        anonymous = await client.call(rpc.HeartbeatRequest(), ())
        assert anonymous.status.code == Code.CLIENT_ID_REQUIRED
        assert await client.stored("Plain") == []

    with_gateway(tmp_path, story)


def test_a_broker_that_is_gone_is_reported_and_found_again(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        assert (await client.send(message())).status.code == Code.OK
        broker = client.cluster.brokers[0]
        await broker.stop()
        result: Any = await client.send(message())
        assert result.status.code in (Code.INTERNAL_SERVER_ERROR, Code.TOPIC_NOT_FOUND)
        await broker.start()

        async def sends() -> None:
            while (await client.send(message())).status.code != Code.OK:
                pass

        await sends()

    with_gateway(tmp_path, story)
