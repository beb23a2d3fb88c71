"""Send interceptors: an added one, and the broker's own ones."""

from __future__ import annotations

from pathlib import Path

import orjson

from actors.broker.core.capability import Capability, Feature
from actors.broker.core.sending.interceptors import SendDraft
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.hot_headers import SendMessageHeader
from actors.wire.remoting_errors import Refused
from store.message.batch import encode_batch
from store.message.message import Message
from tests.actors.broker.brokers import Peer, settings_of, with_broker


class Quarantine:
    """Redirects messages of topic `Checked` to topic `Quarantine`, and refuses some of them."""

    property_names = None

    def before_append(self, draft: SendDraft) -> None:
        """Redirect a message of topic `Checked`, or refuse it."""
        if draft.record.topic != "Checked":
            return
        if b"virus" in bytes(draft.record.body):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the body contains a virus: clean it")
        draft.properties += f"CAME_TO\x01{draft.record.topic}\x02"
        draft.record.topic, draft.record.queue_id = "Quarantine", 0


QUARANTINE = Feature(lambda parts: Capability(interceptors=(Quarantine(),)))


def test_an_interceptor_redirects_or_refuses_messages(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        assert (await peer.send("Quarantine", b"0")).code == 0
        sent = await peer.send("Checked", b"1", 3, "KEYS\x01k\x02")
        assert (sent.code, sent.ext["queueId"], sent.ext["queueOffset"]) == (0, "3", "1")
        refused = await peer.send("Checked", b"a virus")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert refused.remark == "the body contains a virus: clean it"
        assert await peer.messages("Checked", queue_id=3) == []
        first, redirected = await peer.messages("Quarantine")
        assert (first.body, redirected.body) == (b"0", b"1")
        added = {"CAME_TO": "Checked", "KEYS": "k", "UNIQ_KEY": sent.ext["transactionId"]}
        assert added.items() <= redirected.properties.items()

    with_broker(story, settings_of(tmp_path), features=[QUARANTINE])


def test_an_added_interceptor_runs_before_the_delay(tmp_path: Path, clock) -> None:
    async def story(peer: Peer) -> None:
        sent = await peer.send("Checked", b"late", 2, "DELAY\x011\x02")
        assert (sent.code, sent.ext["queueId"]) == (0, "2")
        [waiting] = await peer.messages("SCHEDULE_TOPIC_XXXX")
        assert (waiting.properties["REAL_TOPIC"], waiting.properties["REAL_QID"]) == ("Quarantine", "0")

    with_broker(story, settings_of(tmp_path), clock, features=[QUARANTINE])


def test_batches_bypass_interceptors(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        ext = SendMessageHeader("PG", "Checked", 0, batch=True).to_ext()
        body = encode_batch([Message("Checked", b"1"), Message("Checked", b"2")])
        assert (await peer.ask(RequestCode.SEND_BATCH_MESSAGE, ext, body)).code == 0
        assert [message.body for message in await peer.messages("Checked")] == [b"1", b"2"]

    with_broker(story, settings_of(tmp_path), features=[QUARANTINE])


def test_dead_letter_ignores_queue_and_delay_of_the_retry(tmp_path: Path) -> None:
    """As in RocketMQ: the queue is one of the retry topic, and the delay is ignored."""

    async def story(peer: Peer) -> None:
        config = orjson.dumps({"groupName": "G", "retryQueueNums": 2, "retryMaxTimes": 1})
        await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        for queue_id, delay in ((1, "3"), (0, "soon")):
            sent = await peer.send("%RETRY%G", b"bad", queue_id, f"DELAY\x01{delay}\x02", reconsume_times=2)
            assert (sent.code, sent.ext["queueId"]) == (0, str(queue_id))
        dead = await peer.messages("%DLQ%G")
        assert [(each.queue_id, each.properties["DELAY"]) for each in dead] == [(0, "-1"), (0, "-1")]
        unknown = await peer.send("%RETRY%G", queue_id=8, reconsume_times=2)
        assert unknown.code == ResponseCode.INVALID_PARAMETER

    with_broker(story, settings_of(tmp_path))


def test_retry_of_a_committed_message_is_not_a_half_message(tmp_path: Path) -> None:
    """TRAN_MSG is a property of the message that the consumer received (a consumer before 4.6.1 keeps it)."""

    async def story(peer: Peer) -> None:
        prepared = "TRAN_MSG\x01true\x02DELAY\x013\x02"
        assert (await peer.send("%RETRY%G", properties=prepared, reconsume_times=3)).code == 0
        sent = await peer.send("%RETRY%G", properties=prepared, reconsume_times=17, sys_flag=4)
        assert sent.code == ResponseCode.SUCCESS
        [dead] = await peer.messages("%DLQ%G")
        assert (dead.properties["TRAN_MSG"], dead.sys_flag) == ("true", 0)
        assert await peer.messages("RMQ_SYS_TRANS_HALF_TOPIC") == []

    with_broker(story, settings_of(tmp_path))
