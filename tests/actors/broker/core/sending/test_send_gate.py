"""Whatever closes the gate of a store closes it for each request that sends, with its own reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.transport.request import Cost
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import ConsumerSendMsgBackHeader
from store.writing.send_gate import DISK, DISPATCH, FAILURE, REPLICATION
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.core.sending.test_plain_sends import KEY, taken
from tests.actors.broker.core.sending.test_replies import requester
from tests.actors.broker.core.sending.test_system_topics import SENDS, SENT_BACK
from tests.actors.broker.features.transactions.transactions import COMMIT, begin, end

UNAVAILABLE, ERROR = ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR
SOURCES = {
    FAILURE: UNAVAILABLE,
    DISPATCH: UNAVAILABLE,
    DISK: UNAVAILABLE,
    REPLICATION: ERROR,
    "feature": ERROR,
}


@pytest.mark.parametrize("source", SOURCES)
def test_no_request_sends_while_a_source_has_closed_the_gate(tmp_path: Path, source: str) -> None:
    async def story(peer: Peer) -> None:
        loop = peer.loop
        store, rows = loop.store, loop.requests.rows
        senders = {row.code for row in rows.values() if row.cost is Cost.SEND}
        assert senders == {*SENDS, SENT_BACK}, "give a request of the new row in SENDS"
        pushed: list[RemotingCommand] = []
        waiting = requester(peer, 0, pushed)
        await waiting.heartbeat("requester", "G")
        half = await begin(peer)
        for _ in range(20):  # the compiled path takes them when it knows the queue
            await peer.send("T", properties=KEY)
        compiled, before = taken(peer.broker), store.positions.written
        assert compiled
        store.gate.close(source, "the test has closed it")
        responses = [await peer.send("T", properties=KEY), await end(peer, half, COMMIT)]
        responses += [await peer.ask(code, *request("New")) for code, request in SENDS.items()]
        back = ConsumerSendMsgBackHeader(0, "CG", delay_level=1).to_ext()
        responses.append(await peer.ask(SENT_BACK, back))
        for response in responses:
            assert response.code == SOURCES[source], response.remark
            assert "the test has closed it" in (response.remark or "")
        assert (store.positions.written, taken(peer.broker)) == (before, compiled)
        assert "New" not in peer.tables.topics.table.topics
        assert pushed == []
        store.gate.open(source)
        assert (await peer.send("T", properties=KEY)).code == ResponseCode.SUCCESS
        assert (await end(peer, half, COMMIT)).code == ResponseCode.SUCCESS
        await waiting.client.close()

    with_broker(story, settings_of(tmp_path))


def test_what_one_source_opens_stays_closed_by_another(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        gate = peer.store.gate
        gate.close(REPLICATION, "too few replicas")
        gate.close(DISK, "the disk is full")
        assert "the disk is full" in str((await peer.send("T")).remark)  # the more lasting reason
        gate.open(DISK)
        assert (await peer.send("T")).remark == "too few replicas"
        gate.open(REPLICATION)
        assert (await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == ResponseCode.SUCCESS
        assert (await peer.send("T")).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path))
