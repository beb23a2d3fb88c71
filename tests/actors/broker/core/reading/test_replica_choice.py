"""Pull responses suggest the replica to read from by RocketMQ's rule."""

from __future__ import annotations

from pathlib import Path

import orjson

from actors.broker.core.role import Role
from actors.wire.codes import RequestCode, ResponseCode
from tests.actors.broker.brokers import Peer, settings_of, with_broker


async def suggested(peer: Peer, offset: int) -> set[str]:
    """Return the suggestions of a RocketMQ pull and of PULL_RECORDS at an offset."""
    pulls = (await peer.pull("T", offset, max_msg_nums=1), await peer.pull_records("T", offset, max_bytes=1))
    return {answer.ext["suggestWhichBrokerId"] for answer in pulls}


async def update(peer: Peer, settings: str) -> None:
    assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=settings.encode())).code == 0


def test_consumers_far_behind_are_sent_to_the_groups_slave_and_back(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        for _ in range(3):
            await peer.send("T")
        assert await suggested(peer, 0) == {"0"}  # three messages are no share of the memory
        await update(peer, "accessMessageInMemoryMaxRatio=0\n")
        assert await suggested(peer, 0) == {"1"}
        assert await suggested(peer, 2) == {"0"}  # the last message
        assert await suggested(peer, 3) == {"0"}
        group = {"groupName": "CG", "brokerId": 4, "whichBrokerWhenConsumeSlowly": 2}
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert (await peer.ask(code, body=orjson.dumps(group))).code == 0
        assert await suggested(peer, 0) == {"2"}
        assert await suggested(peer, 2) == {"4"}
        assert await suggested(peer, 3) == {"4"}
        await update(peer, "slaveReadEnable=false\n")
        assert await suggested(peer, 0) == {"0"}

    with_broker(story, settings_of(tmp_path, slave_read_enable=True))


def test_slave_moves_no_offset_but_sends_the_consumer_to_the_master(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        role = peer.role
        await role.become(Role.MASTER, 1)
        await peer.send("T")
        assert (await peer.pull("T", 5)).code == ResponseCode.PULL_OFFSET_MOVED
        await role.become(Role.SLAVE, 1)
        for answer in (await peer.pull("T", 5), await peer.pull_records("T", 5)):
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert (answer.ext["nextBeginOffset"], answer.ext["suggestWhichBrokerId"]) == ("5", "0")
        assert (await peer.pull("T", 1)).code == ResponseCode.PULL_NOT_FOUND

    with_broker(story, settings_of(tmp_path, role="slave", slave_read_enable=True))
