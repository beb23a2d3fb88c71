"""Users and policies at a gateway: the signatures of SDKs, and requests on behalf of a user."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from google.protobuf.duration_pb2 import Duration

from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import (
    Address,
    AddressScheme,
    ClientType,
    Code,
    Endpoints,
    Publishing,
    Resource,
    Settings,
    Subscription,
    SubscriptionEntry,
)
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import RegisterBrokerHeader
from actors.wire.hot_headers import SendMessageHeader
from actors.wire.raymq_requests import CheckUserHeader
from actors.wire.signing import ON_BEHALF_OF, ON_BEHALF_OF_SOURCE
from tests.actors.broker.brokers import TIMEOUT_MS
from tests.actors.broker.core.auth.access_peers import DENIED, SECRETS, Connect, SigningPeer, with_access
from tests.actors.gateway.gateways import GrpcClient, message, with_gateway
from tests.actors.host.foreign_peers import forging

DATE = "20261127T120000Z"
MINE, SECRET = Resource(name="Mine"), Resource(name="Secret")
WORKERS, OTHERS = Resource(name="workers"), Resource(name="others")
ENDPOINTS = Endpoints(scheme=AddressScheme.IPv4, addresses=[Address(host="192.0.2.7", port=8081)])


def signed(user: str, key: str, client_id: str = "c1") -> tuple[tuple[str, str], ...]:
    """Return the headers of a call as RocketMQ's Java client writes them."""
    digits = hmac.new(key.encode(), DATE.encode(), hashlib.sha1).hexdigest().upper()
    text = f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={digits}"
    return (("x-mq-client-id", client_id), ("x-mq-date-time", DATE), ("authorization", text))


def with_users(root: Path, story: Callable[[GrpcClient, GrpcClient], Awaitable[None]]) -> None:
    """Run a story with the clients of alice, who may use Mine and workers, and of root, a super user."""

    async def prepared(inner: GrpcClient) -> None:
        peer = cast("SigningPeer", inner.peer)
        for topic in ("Mine", "Secret"):
            await inner.create_topic(topic)
        assert (await peer.create_user("alice")).code == 0
        assert (await peer.create_user("root", "Super")).code == 0
        for resource in ("Topic:Mine", "Group:workers"):
            assert (await peer.permit("alice", resource, "All", sources=["127.0.0.1"])).code == 0
        clients = [
            GrpcClient(inner.cluster, inner.channel, peer, signed(name, SECRETS[name]))
            for name in ("alice", "root")
        ]
        await story(*clients)

    with_gateway(root, prepared, has_users=True)


def receive(topic: Resource = MINE, group: Resource = WORKERS) -> rpc.ReceiveMessageRequest:
    request = rpc.ReceiveMessageRequest(
        group=group, batch_size=32, invisible_duration=Duration(seconds=30),
        long_polling_timeout=Duration(seconds=0),
    )  # fmt: skip
    request.message_queue.topic.CopyFrom(topic)
    request.message_queue.id = -1
    request.message_queue.broker.name = "broker-a"
    return request


async def received(client: GrpcClient, request: rpc.ReceiveMessageRequest) -> Any:
    found = [each async for each in client.receive(request)]
    return found[0].status.code, [each.message for each in found[1:-1]]


def test_signed_calls_of_a_user_with_permission_succeed(tmp_path: Path) -> None:
    async def story(alice: GrpcClient, root: GrpcClient) -> None:
        assert (await received(alice, receive()))[0] == Code.MESSAGE_NOT_FOUND
        assert (await alice.send(message("Mine"))).status.code == Code.OK
        code, [found] = await received(alice, receive())
        assert (code, found.body) == (Code.OK, b"body")
        entry = rpc.AckMessageEntry(message_id="01ABC", receipt_handle=found.system_properties.receipt_handle)
        acked = await alice.call(rpc.AckMessageRequest(group=WORKERS, topic=MINE, entries=[entry]))
        assert acked.status.code == Code.OK
        assert (await root.send(message("Secret"))).status.code == Code.OK

    with_users(tmp_path, story)


UNKNOWN = {
    "no signature": (("x-mq-client-id", "c1"),),
    "empty credential": signed("", ""),
    "wrong key": signed("alice", "wrong"),
    "unknown user": signed("mallory", "wrong"),
    "inner user": signed("inner", "inner-secret"),
    "not hexadecimal": (
        *signed("alice", "")[:2],
        ("authorization", "MQv2-HMAC-SHA1 Credential=alice, Signature=xyz"),
    ),
    "other algorithm": (*signed("alice", "")[:2], ("authorization", "Bearer alice")),
    "long user": signed("a" * 600, "wrong"),
}


def test_foreign_broker_in_the_routes_decides_no_login(tmp_path: Path) -> None:
    """`AAA` is the first broker that the gateway finds, and answers every request with success."""

    async def story(inner: GrpcClient) -> None:
        async with forging() as forger:
            ext = RegisterBrokerHeader("AAA", forger.address, "DefaultCluster", 0).to_ext()
            nameserver = inner.cluster.nameserver_address
            registered = RemotingCommand(RequestCode.REGISTER_BROKER, ext)
            await inner.peer.client.ask(nameserver, registered, TIMEOUT_MS)
            peer = cast("SigningPeer", inner.peer)
            assert (await peer.create_user("root", "Super")).code == 0
            for metadata, expected in (
                (signed("root", "wrong"), Code.UNAUTHORIZED),
                (signed("mallory", "any"), Code.UNAUTHORIZED),
                (signed("root", SECRETS["root"]), Code.OK),
            ):
                client = GrpcClient(inner.cluster, inner.channel, peer, metadata)
                assert (await client.send(message())).status.code == expected
            assert forger.codes
            assert not forger.learned

    with_gateway(tmp_path, story, has_users=True)


def test_calls_without_valid_signature_are_unauthorized(tmp_path: Path) -> None:
    async def story(alice: GrpcClient, root: GrpcClient) -> None:
        for name, metadata in UNKNOWN.items():
            stranger = GrpcClient(alice.cluster, alice.channel, alice.peer, metadata)
            assert (await stranger.send(message("Mine"))).status.code == Code.UNAUTHORIZED, name
            assert (await received(stranger, receive()))[0] == Code.UNAUTHORIZED, name
            stream = stranger.telemetry()
            assert (await stream.read()).status.code == Code.UNAUTHORIZED, name
        for name, request in foreign_calls().items():
            assert (await stranger.call(request)).status.code == Code.UNAUTHORIZED, name
        assert await alice.stored("Mine") == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.gateway.access.REFUSAL_DELAY_MS", 0)
        with_users(tmp_path, story)


def foreign_calls() -> dict[str, Any]:
    """Return an rpc for each place of a foreign topic or group that a gateway or a broker checks."""
    handle = "0 4102444800000 60000 0 0 broker-a 0 0 0"  # of the year 2100: not late
    second = Duration(seconds=10)
    recall = urlsafe_b64encode(b"v1 Secret broker-a 9999999999999 id").decode()
    return {
        "route": rpc.QueryRouteRequest(topic=SECRET, endpoints=ENDPOINTS),
        "assignment of a topic": rpc.QueryAssignmentRequest(topic=SECRET, group=WORKERS),
        "assignment of a group": rpc.QueryAssignmentRequest(topic=MINE, group=OTHERS),
        "heartbeat": rpc.HeartbeatRequest(client_type=ClientType.PUSH_CONSUMER, group=OTHERS),
        "termination": rpc.NotifyClientTerminationRequest(group=OTHERS),
        "send": rpc.SendMessageRequest(messages=[message("Secret")]),
        "end of a transaction": rpc.EndTransactionRequest(
            topic=SECRET, transaction_id="broker-a 0 0 id", resolution=1, message_id="id"
        ),
        "recall": rpc.RecallMessageRequest(topic=SECRET, recall_handle=recall),
        "ack": rpc.AckMessageRequest(
            group=OTHERS, topic=MINE, entries=[rpc.AckMessageEntry(receipt_handle=handle)]
        ),
        "change": rpc.ChangeInvisibleDurationRequest(
            group=OTHERS, topic=MINE, receipt_handle=handle, invisible_duration=second
        ),
        "dead letter": rpc.ForwardMessageToDeadLetterQueueRequest(
            group=OTHERS, topic=MINE, receipt_handle=handle
        ),
    }


def test_calls_without_permission_are_forbidden(tmp_path: Path) -> None:
    async def story(alice: GrpcClient, root: GrpcClient) -> None:
        for name, request in foreign_calls().items():
            assert (await alice.call(request)).status.code == Code.FORBIDDEN, name
            assert (await root.call(request)).status.code != Code.FORBIDDEN, name
        for request in (receive(SECRET), receive(group=OTHERS)):
            assert (await received(alice, request))[0] == Code.FORBIDDEN
        both = [SubscriptionEntry(topic=topic) for topic in (MINE, SECRET)]
        for settings in (
            Settings(client_type=ClientType.PRODUCER, publishing=Publishing(topics=[MINE, SECRET])),
            Settings(
                client_type=ClientType.PUSH_CONSUMER,
                subscription=Subscription(group=WORKERS, subscriptions=both),
            ),
        ):
            stream = alice.telemetry()
            await stream.write(rpc.TelemetryCommand(settings=settings))
            assert (await stream.read()).status.code == Code.FORBIDDEN
            stream.cancel()
        assert len(await alice.stored("Secret")) == 1  # that of root

    with_users(tmp_path, story)


@pytest.mark.parametrize("state", ["gone", "silent"])
def test_nobody_is_admitted_while_no_broker_responds(tmp_path: Path, state: str) -> None:
    """The brokers are stopped; the nameserver lists none any more, or a port without a process."""

    async def story(inner: GrpcClient) -> None:
        peer = cast("SigningPeer", inner.peer)
        assert (await peer.create_user("root", "Super")).code == 0
        (broker,) = inner.cluster.brokers
        await broker.stop()
        if state == "silent":
            ext = RegisterBrokerHeader("broker-a", broker.address, "DefaultCluster", 0).to_ext()
            registered = RemotingCommand(RequestCode.REGISTER_BROKER, ext)
            await peer.client.ask(inner.cluster.nameserver_address, registered, TIMEOUT_MS)
        for metadata in (signed("root", SECRETS["root"]), signed("root", "wrong"), signed("mallory", "any")):
            client = GrpcClient(inner.cluster, inner.channel, peer, metadata)
            for name, request in foreign_calls().items():
                status = (await client.call(request)).status
                assert status.code == Code.INTERNAL_SERVER_ERROR, (name, status)

    with_gateway(tmp_path, story, has_users=True)


def test_user_loses_a_permission_at_once(tmp_path: Path) -> None:
    async def story(alice: GrpcClient, root: GrpcClient) -> None:
        peer = cast("SigningPeer", alice.peer)
        assert (await alice.send(message("Mine"))).status.code == Code.OK
        await peer.permit("alice", "Topic:Mine", "All", sources=["192.0.2.0/24"])  # not alice's address
        assert (await alice.send(message("Mine"))).status.code == Code.FORBIDDEN
        await peer.permit("alice", "Topic:Mine", "All")
        assert (await alice.send(message("Mine"))).status.code == Code.OK
        await peer.update_user("alice", userStatus="disable")
        assert (await alice.send(message("Mine"))).status.code == Code.FORBIDDEN

    with_users(tmp_path, story)


def on_behalf(name: str, source: str = "192.0.2.1") -> dict[str, str]:
    return {**SendMessageHeader("PG", "Mine", 0).to_ext(), ON_BEHALF_OF: name, ON_BEHALF_OF_SOURCE: source}


def test_only_the_inner_user_acts_for_others(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        send, check = RequestCode.SEND_MESSAGE_V2, RayMQRequestCode.CHECK_USER
        await inner.create_user("alice")
        await inner.create_user("bob")
        await inner.create_user("root", "Super")
        await inner.permit("alice", "Topic:Mine", "Pub", sources=["192.0.2.1"])
        assert (await inner.ask(send, on_behalf("alice"), b"m")).code == 0
        for ext in (
            on_behalf("bob"),
            on_behalf("mallory"),
            on_behalf("inner"),
            on_behalf("alice", "192.0.2.2"),
        ):
            assert (await inner.ask(send, ext, b"m")).code == DENIED
        assert (await inner.ask(send, on_behalf("alice", "localhost"), b"m")).code != 0
        for name in ("bob", "root"):
            response = await connect(name).ask(send, on_behalf("alice"), b"m")
            assert response.code == DENIED
            assert "only the cluster's inner user may set OnBehalfOf" in (response.remark or "")
        assert (await inner.ask(check, CheckUserHeader(DATE, "00").to_ext())).code not in (0, DENIED)

    with_access(story, tmp_path)
