"""With access control, a reply is pushed only to the client that has sent the request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from actors.broker.core.sending import outstanding_requests
from actors.broker.core.sending.outstanding_requests import OutstandingRequests
from actors.broker.service import BrokerService
from actors.nameserver.nameserver_settings import NameserverSettings
from actors.nameserver.service import build_nameserver
from actors.transport.client import SigningClient
from actors.transport.limits import RemotingLimits
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import HeartbeatData
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import FindRequestHeader
from actors.wire.hot_headers import SendMessageHeader, SendMessageHeaderV1
from actors.wire.signing import Credentials, Signer
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, run, settings_of
from tests.actors.broker.core.auth.access_peers import (
    DENIED,
    INNER,
    SECRETS,
    Connect,
    SigningPeer,
    inner_file,
    with_access,
)
from tests.eventually import eventually_async

TOPIC = "DefaultCluster_REPLY_TOPIC"


def properties(client_id: str = "requester", correlation_id: str = "c1", ttl: str = "60000") -> str:
    return f"REPLY_TO_CLIENT\x01{client_id}\x02CORRELATION_ID\x01{correlation_id}\x02TTL\x01{ttl}\x02"


class Requester(SigningPeer):
    """A client of a user that records the replies that brokers push to it."""

    def __init__(self, broker: BrokerService, user: str) -> None:
        super().__init__(broker, Credentials(user, SECRETS[user]))
        self.received: list[bytes] = []
        table = RequestTable()
        table.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._pushed)
        limits = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)
        signer = Signer(Credentials(user, SECRETS[user]))
        self.client = SigningClient(SystemClock(), signer, table, limits)

    def _pushed(self, context: RequestContext) -> RemotingCommand:
        self.received.append(bytes(context.command.body))
        return RemotingCommand.response()

    async def beat(self, client_id: str = "requester", group: str = "PG") -> None:
        beat = HeartbeatData(client_id, [], [group]).encode()
        assert (await self.ask(RequestCode.HEART_BEAT, body=beat)).code == 0


async def reply(peer: SigningPeer, text: str = "", code: int = RequestCode.SEND_REPLY_MESSAGE_V2) -> int:
    kind = SendMessageHeaderV1 if code == RequestCode.SEND_REPLY_MESSAGE else SendMessageHeader
    ext = kind("PG", TOPIC, 0, text or properties()).to_ext()
    return (await peer.ask(code, ext, b"reply")).code


async def two_users(inner: SigningPeer) -> None:
    for name in ("alice", "bob"):
        await inner.create_user(name)
        for resource in ("Topic:T", f"Topic:{TOPIC}"):
            await inner.permit(name, resource, "Pub")


def test_reply_needs_a_request_of_its_client(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await two_users(inner)
        alice, bob = Requester(inner.broker, "alice"), connect("bob")
        await alice.beat()
        for code in (RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
            assert await reply(bob, code=code) == DENIED
        # A request of another user does not count, nor does one for another client.
        await bob.send("T", properties=properties())
        assert await reply(bob) == DENIED
        await alice.send("T", properties=properties("other"))
        assert await reply(bob) == DENIED
        await alice.send("T", properties=properties())
        for text in (properties(correlation_id="c2"), "REPLY_TO_CLIENT\x01requester\x02"):
            assert await reply(bob, text) == DENIED
        assert alice.received == []
        assert await inner.messages(TOPIC) == []
        assert await reply(bob) == 0
        assert alice.received == [b"reply"]
        await alice.client.close()

    with_access(story, tmp_path)


def test_client_id_in_another_group_steals_no_reply(tmp_path: Path) -> None:
    async def story(inner: SigningPeer, connect: Connect) -> None:
        await two_users(inner)
        alice, bob = Requester(inner.broker, "alice"), Requester(inner.broker, "bob")
        await bob.beat(group="A")
        await alice.beat(group="B")
        await alice.send("T", properties=properties())
        assert await reply(bob) == 0
        assert (alice.received, bob.received) == ([b"reply"], [])
        for each in (alice, bob):
            await each.client.close()

    with_access(story, tmp_path)


def test_requests_of_a_user_are_bounded(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(outstanding_requests, "REQUESTS", replace(outstanding_requests.REQUESTS, limit=2))

    async def story(inner: SigningPeer, connect: Connect) -> None:
        await two_users(inner)
        alice, bob = Requester(inner.broker, "alice"), connect("bob")
        await alice.beat()
        for correlation_id in ("c1", "c2", "c3"):
            await alice.send("T", properties=properties(correlation_id=correlation_id))
            for number in range(3):  # of another user: they displace none of alice
                await bob.send("T", properties=properties(correlation_id=f"b{number}"))
        assert [await reply(bob, properties(correlation_id=each)) for each in ("c1", "c2", "c3")] == [
            DENIED,
            0,
            0,
        ]
        for ttl in ("1", "", "x", "9" * 400, "-1", "\u0663"):
            await alice.send("T", properties=properties(correlation_id="late", ttl=ttl))
        for size in (257, 30_000):
            long = properties(correlation_id="x" * size)
            await alice.send("T", properties=long)
            assert await reply(bob, long) == DENIED
        await alice.client.close()

    with_access(story, tmp_path)


def test_request_waits_until_its_time_has_passed(clock) -> None:
    requests = OutstandingRequests(clock, lambda context: "alice", is_enforced=True)
    header = SendMessageHeader("PG", "T", 0, properties(ttl="1000"))
    row = SimpleNamespace(code=RequestCode.SEND_MESSAGE_V2)
    requests.note(SimpleNamespace(row=row, header=header))  # type: ignore[arg-type]
    clock.advance(999)
    assert requests.is_known("alice", "requester", "c1")
    clock.advance(1)
    assert not requests.is_known("alice", "requester", "c1")


def test_reply_may_arrive_at_another_broker_than_its_request(tmp_path: Path) -> None:
    async def story() -> None:
        signed = {
            "authentication_enabled": True,
            "authorization_enabled": True,
            "inner_credentials_file": inner_file(tmp_path),
        }
        nameserver = build_nameserver(NameserverSettings.model_validate({"listen_port": 0}), SystemClock())
        await nameserver.start()
        brokers = [
            BrokerService(
                settings_of(tmp_path / name, broker_name=name, nameservers=nameserver.address, **signed),
                SystemClock(),
            )
            for name in ("a", "b")
        ]
        peers: list[SigningPeer] = []
        try:
            for broker in brokers:
                await broker.start()
                peers.append(SigningPeer(broker, INNER))
                await two_users(peers[-1])
            second = brokers[1]
            alice = [Requester(broker, "alice") for broker in brokers]
            bob = SigningPeer(second, Credentials("bob", SECRETS["bob"]))
            peers += [*alice, bob]
            for each in alice:
                await each.beat()
            assert await reply(bob) == DENIED
            await alice[0].send("T", properties=properties())
            await eventually_async(lambda: is_routed(peers[0], nameserver.address))
            assert await reply(bob) == 0
            assert (alice[0].received, alice[1].received) == ([], [b"reply"])
            find = FindRequestHeader("c1", "requester", "alice").to_ext()
            assert (await peers[0].ask(RayMQRequestCode.FIND_REQUEST, find)).code == 0
            assert (await alice[0].ask(RayMQRequestCode.FIND_REQUEST, find)).code == DENIED
        finally:
            for peer in peers:
                await peer.client.close()
            for broker in brokers:
                await broker.stop()
            await nameserver.stop()

    async def is_routed(peer: SigningPeer, nameserver: str) -> bool:
        command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        route = await peer.client.invoke(nameserver, command, TIMEOUT_MS)
        return bytes(route.body).count(b"brokerAddrs") == 2

    run(story)
