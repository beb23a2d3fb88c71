"""GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG, as mqadmin sends them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.properties_text import parse_properties
from tests.actors.broker.brokers import Peer, settings_of, with_broker


async def config(peer: Peer) -> tuple[dict[str, str], int]:
    response = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    assert response.code == 0
    return parse_properties(bytes(response.body).decode()), json.loads(response.ext["version"])["counter"]


def test_get_broker_config_uses_rocketmqs_keys_and_texts(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        settings, version = await config(peer)
        assert version == 0
        expected = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": "broker-a",
            "brokerId": "0",
            "brokerIP1": "127.0.0.1",  # not configured: the listen address, as in RocketMQ
            "fileReservedTime": "72",
            "flushDiskType": "SYNC_FLUSH",
            "autoCreateTopicEnable": "true",
            "deleteWhen": "04",
            "preallocate": "true",  # a setting that RocketMQ does not have
            "namesrvAddr": "",
        }
        assert {key: settings[key] for key in expected} == expected
        assert list(settings) == sorted(settings)

    with_broker(story, settings_of(tmp_path))


def test_live_settings_apply_immediately_and_increment_the_version(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        body = b"brokerPermission=4\nfileReservedTime=48 \nmaxMessageSize=5\n"
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)).code == 0

        settings, version = await config(peer)
        assert (settings["brokerPermission"], settings["fileReservedTime"], version) == ("4", "48", 1)
        assert (await peer.pull("T")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await peer.send("T", b"short")).code == 0
        refused = await peer.send("T", b"longer")
        assert "exceeds max_message_bytes 5" in refused.remark

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"fileReservedTime=48\nlistenPort=1", "NO_PERMISSION", "listen_port: a change needs a restart"),
        (b"fileReservedTime=48\nflushDiskType=ASYNC_FLUSH", "NO_PERMISSION", "store.flush: a change needs"),
        (b"fileReservedTime=48\nnoSuchKey=1", "INVALID_PARAMETER", "noSuchKey: unknown setting"),
        (b"fileReservedTime=48\nrocketmqHome=/", "NO_PERMISSION", "Can not update config in black list."),
        (b"fileReservedTime=48\nbrokerPermission=9", "INVALID_PARAMETER", "less than or equal to 7"),
        (b"fileReservedTime=48\ndeleteWhen=25", "INVALID_PARAMETER", "is not a list of hours"),
        (b"fileReservedTime=48\nbrokerRole=SLAVE", "NO_PERMISSION", "brokerRole is ASYNC_MASTER: a constant"),
        (b"fileReservedTime=soon", "INVALID_PARAMETER", "'soon'"),
        (b"", "INVALID_PARAMETER", "send lines of key=value"),
        (b"a=\\u1", "INVALID_PARAMETER", "line 1"),
        (b"\xff", "INVALID_PARAMETER", "not valid properties text"),
    ],
)
def test_invalid_update_is_refused_and_changes_nothing(
    tmp_path: Path, body: bytes, code: str, remark: str
) -> None:
    async def story(peer: Peer) -> None:
        before = await config(peer)
        response = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert (response.code, remark in response.remark) == (ResponseCode[code], True), response.remark
        assert await config(peer) == before

    with_broker(story, settings_of(tmp_path))


def test_long_text_of_settings_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        refused = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6\n" * 4_000)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "76,000 bytes exceeds the limit of 32,768 for settings" in (refused.remark or "")

    with_broker(story, settings_of(tmp_path))


def test_update_with_unchanged_settings_keeps_the_version(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        response = await peer.ask(RequestCode.GET_BROKER_CONFIG)
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=bytes(response.body))).code == 0
        assert (await config(peer))[1] == 0

    with_broker(story, settings_of(tmp_path))
