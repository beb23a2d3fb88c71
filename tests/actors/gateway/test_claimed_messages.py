"""Messages that a broker has claimed for a receive which then fails, or which the client cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from google.protobuf.duration_pb2 import Duration

from actors.gateway.access import Access
from actors.gateway.consumers import Consumers
from actors.gateway.groups import GatewayGroup, GatewayGroups
from actors.gateway.grpc.calls import Call
from actors.gateway.lite import LiteSubscriptions
from actors.gateway.members import GatewayMembers
from actors.gateway.proto import definition_pb2 as v2
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.receipts import ReceiptRenewals
from actors.gateway.topics import GatewayTopics, Topic
from actors.transport.client import RemotingClient
from actors.wire.bodies.routes import BrokerData, TopicRouteData
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from store.common.clock import SystemClock
from store.message.record import RecordDraft, encode_record

RETRY_MAX = 1
HOST = bytes(8)


class ClaimingBroker:
    """A broker, its route and a connection to it: it claims three messages, and refuses to release one."""

    def __init__(self, *, is_leaving: bool = False, deliveries: int = 1) -> None:
        """Create the object; a leaving broker is in no route after its response to a pop."""
        self._is_leaving = is_leaving
        self._deliveries = deliveries
        self.has_claimed = asyncio.Event()
        self.may_respond = asyncio.Event()
        self.released: list[int] = []
        self.spawned: list[Coroutine[Any, Any, None]] = []
        self.hub = SimpleNamespace(spawn=self.spawned.append)

    async def get(self, name: str, topic: str = "") -> Any:
        """Return a topic, or the settings of a group."""
        if topic:
            return GatewayGroup(is_fifo=False, retry_max=RETRY_MAX, since_ns=0)
        has_left = self._is_leaving and self.has_claimed.is_set()
        brokers = [] if has_left else [BrokerData("c", "broker-a", {0: "127.0.0.1:1"})]
        return Topic(name, TopicRouteData(broker_datas=brokers), (), 0)

    def failed(self, name: str, error: Exception) -> None:
        """Keep the route."""

    async def invoke(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        self.has_claimed.set()
        await self.may_respond.wait()
        drafts = (RecordDraft("T", 0, b"%d" % n, reconsume_times=self._deliveries - 1) for n in range(3))
        records = (encode_record(draft, n, 1000 * n, 1, HOST) for n, draft in enumerate(drafts))
        ext = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0", "startOffsetInfo": "0 0 0"}
        return RemotingCommand(0, ext, b"".join(records))

    async def ask(self, address: str, command: RemotingCommand, timeout_ms: int) -> RemotingCommand:
        assert command.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        offset = int(command.ext["offset"])
        if offset == 0:
            raise Refused(1, "the message at offset 0 cannot be changed")
        self.released.append(offset)
        return RemotingCommand(0)


class ReceiveCall:
    """A call of ReceiveMessage, and its responses."""

    metadata = {"x-mq-client-id": "client@test"}  # noqa: RUF012
    remaining_s = None

    def __init__(self, *, reads: int = 100, auto_renew: bool = False) -> None:
        """Create the call of a client that stops to read after some responses."""
        self.sent: list[rpc.ReceiveMessageResponse] = []
        self._reads = reads
        self._auto_renew = auto_renew
        self.is_blocked = asyncio.Event()
        self.kept_bytes = 0

    async def request(self) -> rpc.ReceiveMessageRequest:
        queue = v2.MessageQueue(topic=v2.Resource(name="T"), broker=v2.Broker(name="broker-a"))
        minute = Duration(seconds=60)
        group = v2.Resource(name="G")
        return rpc.ReceiveMessageRequest(
            group=group, message_queue=queue, invisible_duration=minute, auto_renew=self._auto_renew
        )

    def keep(self, size_bytes: int) -> None:
        self.kept_bytes += size_bytes

    async def send(self, response: rpc.ReceiveMessageResponse) -> None:
        if len(self.sent) == self._reads:
            self.is_blocked.set()
            await asyncio.Event().wait()
        self.sent.append(response)


def members_of(broker: ClaimingBroker) -> GatewayMembers:
    return GatewayMembers(cast("GatewayTopics", broker), cast("RemotingClient", broker), SystemClock())


def consumers_of(
    broker: ClaimingBroker, renewals: ReceiptRenewals | None = None, members: GatewayMembers | None = None
) -> Consumers:
    client, topics, groups = (
        cast("RemotingClient", broker),
        cast("GatewayTopics", broker),
        cast("GatewayGroups", broker),
    )
    clock = SystemClock()
    access = Access(None, client, clock, 1000, 1000)
    renewals = ReceiptRenewals(clock) if renewals is None else renewals
    members = members_of(broker) if members is None else members
    lite = LiteSubscriptions(topics, groups, members, client, 1000)
    return Consumers(access, topics, groups, members, renewals, lite, client, clock, 1000)


def receiving(consumers: Consumers, call: ReceiveCall) -> asyncio.Task[None]:
    return asyncio.ensure_future(consumers.receive(cast("Call", call)))


def test_dead_letters_are_received_if_their_broker_leaves() -> None:
    async def story() -> None:
        broker = ClaimingBroker(is_leaving=True, deliveries=RETRY_MAX + 2)
        call = ReceiveCall()
        broker.may_respond.set()
        await receiving(consumers_of(broker), call)
        status, *messages, _ = call.sent
        assert status.status.code == v2.OK
        assert [each.message.body for each in messages] == [b"0", b"1", b"2"]

    asyncio.run(story())


def test_messages_of_a_cancelled_receive_are_each_released() -> None:
    async def story() -> None:
        broker = ClaimingBroker()
        call = receiving(consumers_of(broker), ReceiveCall())
        await broker.has_claimed.wait()
        call.cancel()
        await asyncio.wait([call])
        broker.may_respond.set()
        [release] = broker.spawned
        await release
        assert broker.released == [1, 2]

    asyncio.run(story())


def test_messages_that_a_client_does_not_read_are_released_when_it_cancels() -> None:
    async def story() -> None:
        broker = ClaimingBroker()
        renewals, call = ReceiptRenewals(SystemClock()), ReceiveCall(reads=2, auto_renew=True)
        broker.may_respond.set()
        task = receiving(consumers_of(broker, renewals), call)
        await call.is_blocked.wait()  # in the second message
        task.cancel()
        await asyncio.wait([task])
        [release] = broker.spawned
        await release
        assert broker.released == [1, 2]
        assert len(renewals) == 1

    asyncio.run(story())
