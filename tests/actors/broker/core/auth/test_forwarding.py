"""Requests that a broker forwards to clients and other processes contain no credentials of the sender."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import orjson

from actors.broker.service import BrokerService
from actors.transport.request import RequestContext
from actors.transport.server import RemotingServer
from actors.transport.table import RequestTable
from actors.wire.bodies.groups import SyncGroupRequest
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.command import RemotingCommand, encode_command
from actors.wire.header import Header
from actors.wire.signing import SIGNATURE, Credentials
from store.common.clock import SystemClock
from tests.actors.broker.brokers import TIMEOUT_MS, run, settings_of
from tests.actors.broker.core.auth.access_peers import INNER, SigningPeer, inner_file
from tests.actors.broker.features.transactions.transactions import begin, check
from tests.eventually import eventually_async

USER, FIELD = Credentials("canary-user", "canary-secret"), {"canaryField": "canary-value"}
MEMBER = "member-1"
VALUES = {"client_id": MEMBER, "client_addr": "", "consumer_group": "CG", "group": "CG", "topic": "T"}
PROPERTIES = f"REPLY_TO_CLIENT\x01{MEMBER}\x02"
SUBSCRIPTION = {"topic": "T", "subString": "*", "canaryBody": 1}
BODIES: dict[int, Any] = {
    RequestCode.HEART_BEAT: {
        "clientID": MEMBER,
        "consumerDataSet": [
            {"groupName": "CG", "subscriptionDataSet": [SUBSCRIPTION], "consumeType": "CONSUME_PASSIVELY"}
        ],
        "producerDataSet": [{"groupName": "PG"}],
    },
    RayMQRequestCode.SYNC_GROUP: SyncGroupRequest("CG", MEMBER, subscriptions={"T": "*"}).to_json(),
    RequestCode.QUERY_ASSIGNMENT: {
        "topic": "T",
        "consumerGroup": "CG",
        "clientId": MEMBER,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    },
}
TO_CLIENTS = {
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.CHECK_TRANSACTION_STATE,
}
TO_PROCESSES = {
    RequestCode.REGISTER_BROKER,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RayMQRequestCode.FORWARD_HEARTBEAT,
    RayMQRequestCode.FORWARD_UNREGISTER,
    RayMQRequestCode.FORWARD_SYNC,
    RayMQRequestCode.GROUP_MEMBERS,
}


class Recorder:
    """Accepts every request and records its code and its bytes."""

    def __init__(self, response: RemotingCommand) -> None:
        self.received: list[tuple[int, bytes]] = []
        self.table = RequestTable()
        self._response = response
        for code in (*RequestCode, *RayMQRequestCode):
            self.table.add(code, self._record)

    def _record(self, context: RequestContext) -> RemotingCommand:
        self.received.append((context.command.code, encode_command(context.command)))
        answer = self._response
        return RemotingCommand.response(answer.code, answer.remark, dict(answer.ext), answer.body)

    @property
    def codes(self) -> set[int]:
        return {code for code, _ in self.received}


def fields_of(header_type: Any, message_id: str) -> dict[str, str]:
    """Return a value for each field of a header."""
    if header_type is None:
        return {}
    found: dict[str, Any] = {}
    for field in msgspec.structs.fields(header_type):
        is_text = "str" in str(field.type)
        found[field.name] = VALUES.get(field.name, "x" if is_text else False if field.type is bool else 0)
    found |= {"properties": PROPERTIES} if "properties" in found else {}
    found |= {"msg_id": message_id} if "msg_id" in found else {}
    header: Header = header_type(**found)
    return header.to_ext()


def test_no_credential_leaves_the_process_that_received_it(tmp_path: Path) -> None:
    elsewhere = Recorder(RemotingCommand.response(body=b"{}"))
    member = Recorder(RemotingCommand.response(0, None, {"AccessKey": "of-member"}, b"{}"))
    signatures: list[str] = []

    async def ask_everything(broker: BrokerService, stack: AsyncExitStack) -> None:
        inner, user = SigningPeer(broker, INNER), SigningPeer(broker, USER)
        connected = SigningPeer(broker, INNER, member.table)
        for each in (inner, user, connected):
            stack.push_async_callback(each.client.close)
        account = orjson.dumps({"password": USER.secret_key, "userType": "Super"})
        created = await inner.ask(RequestCode.AUTH_CREATE_USER, {"username": USER.access_key}, account)
        assert created.code == 0
        message_id = (await user.send("T")).ext["msgId"]
        for row in list(broker.graph.loop.requests):
            beat = orjson.dumps(BODIES[RequestCode.HEART_BEAT])
            assert (await connected.ask(RequestCode.HEART_BEAT, body=beat)).code == 0
            fields = BODIES.get(row.code)
            body = b"{}" if fields is None else orjson.dumps({**fields, "canaryBody": "canary-value"})
            command = RemotingCommand(row.code, {**fields_of(row.header_type, message_id), **FIELD}, body)
            response = await user.client.invoke(broker.address, command, TIMEOUT_MS)
            assert "AccessKey" not in response.ext, row.code
            assert command.ext[SIGNATURE] not in str(response.remark)
            signatures.append(command.ext[SIGNATURE])
        await user.client.close()  # its heartbeat has registered it with the client id of the member
        leave = {"clientID": MEMBER, "consumerGroup": "CG"}
        assert (await connected.ask(RequestCode.UNREGISTER_CLIENT, leave)).code == 0
        sender = SigningPeer(broker, USER)
        stack.push_async_callback(sender.client.close)
        await begin(sender)
        await check(sender)
        await eventually_async(lambda: member.codes >= TO_CLIENTS and elsewhere.codes >= TO_PROCESSES)

    async def story() -> None:
        async with AsyncExitStack() as stack:
            server = RemotingServer(elsewhere.table, SystemClock())
            address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
            stack.push_async_callback(server.stop)
            settings = settings_of(
                tmp_path,
                nameservers=[address],
                rebalancers=[address],
                authentication_enabled=True,
                authorization_enabled=True,
                inner_credentials_file=inner_file(tmp_path),
                transaction_timeout_ms=0,
            )
            broker = BrokerService(settings, SystemClock())
            await broker.start()
            stack.push_async_callback(broker.stop)
            await ask_everything(broker, stack)

    run(story)
    for code, data in member.received + elsewhere.received:
        assert b"canary" not in data, code
        assert not any(each.encode() in data for each in signatures), code
    assert all(b"AccessKey" not in data for _, data in member.received)
