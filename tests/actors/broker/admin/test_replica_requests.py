"""Requests of slaves and haStatus to a master, and the check that clients request before they start."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from actors.wire.admin_headers import MasterFlushOffsetHeader
from actors.wire.codes import RequestCode, ResponseCode
from tests.actors.broker.brokers import Peer, settings_of, with_broker


def test_master_returns_consumer_and_delay_offsets(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        await peer.commit("CG", "T", 1)
        offsets = orjson.loads((await peer.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)).body)
        assert offsets["offsetTable"] == {"T@CG": {"0": 1}}
        assert "dataVersion" in offsets
        delays = orjson.loads((await peer.ask(RequestCode.GET_ALL_DELAY_OFFSET)).body)
        assert delays.keys() == {"offsetTable", "dataVersion"}

    with_broker(story, settings_of(tmp_path))


def test_ha_status_reports_a_master_without_slaves(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T")
        status = orjson.loads((await peer.ask(RequestCode.GET_BROKER_HA_STATUS)).body)
        written = peer.broker.describe()["written"]
        assert (status["master"], status["masterCommitLogMaxOffset"]) == (True, written)
        assert (status["haConnectionInfo"], status["inSyncSlaveNums"]) == ([], 0)
        header = MasterFlushOffsetHeader(0).to_ext()
        assert (await peer.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET, header)).code == ResponseCode.SUCCESS
        refused = await peer.ask(RequestCode.RESET_MASTER_FLUSH_OFFSET)
        assert "masterFlushOffset" in refused.remark
        assert peer.broker.describe()["written"] == written

    with_broker(story, settings_of(tmp_path))


@pytest.mark.parametrize(
    ("subscription", "code", "remark"),
    [
        ({"topic": "T", "subString": "a", "expressionType": "TAG"}, ResponseCode.SUCCESS, ""),
        ({"topic": "T", "subString": "a > 1", "expressionType": "SQL92"}, ResponseCode.SUCCESS, ""),
        (
            {"topic": "T", "subString": "a >", "expressionType": "SQL92"},
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "(at character 4)",
        ),
        (
            {"topic": "T", "subString": "a", "expressionType": "XPATH"},
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by XPATH",
        ),
        (None, ResponseCode.SUCCESS, ""),
    ],
)
def test_check_client_config_refuses_filters_that_do_not_compile(
    tmp_path: Path, subscription: object, code: ResponseCode, remark: str
) -> None:
    async def story(peer: Peer) -> None:
        body = orjson.dumps({"clientId": "c", "group": "CG", "subscriptionData": subscription})
        answer = await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        assert answer.code == code, answer.remark
        assert remark in (answer.remark or "")

    with_broker(story, settings_of(tmp_path))
