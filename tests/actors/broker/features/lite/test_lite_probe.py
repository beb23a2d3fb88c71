"""The exchange of `lite_probe` with RayMQ is that with RocketMQ 5.5.0, except for what this file lists."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.features.lite.lite_probe import probe

RECORDED = Path(__file__).parents[4] / "fixtures" / "rocketmq-5.5.0-lite.txt"
UNKNOWN = "%LMQ%$LiteT$nothing"
DIFFERENT = [
    # Begin of the request, begin of RayMQ's response.
    ("> 200077 clientId=w1,group=LiteWild", "< 0"),  # RocketMQ does not know when it synchronized
    ("> 200077 clientId=cid1,group=NoSuch", "< 26"),  # RocketMQ creates the group
    ("> 200078 group=LiteExcl,liteTopic=a", "< 0"),  # a group without an offset will get all messages
    ("> 200078 group=LiteOffset,topK=3", "< 0"),  # RocketMQ knows the oldest message of some only
    ("> 200078 group=NoSuch", "< 26"),
    ("> 200079 group=NoSuch", "< 26"),
    ("> 321 consumerGroup=,index=0,queueId=0,topic=" + UNKNOWN, "< 1"),
    ("> 310 LiteT 2 {} none", "< 13"),  # no consumer would get these two
    ("> 310 PlainT 2 {'__LITE_TOPIC': 'b'} plain", "< 13"),
    ('> 200071 {"subscriptionSet":[{"action":"PARTIAL_ADD","clientId":"cid1","group":"NoGroup"', "< 604"),
    ('> 200071 {"subscriptionSet":[{"action":"PARTIAL_ADD","clientId":"cid1","group":"LiteOffset"', "< 604"),
    ("> 200076 liteTopic=a", "< 0"),  # the loser of a lite topic does not get it back
    ("> 200070 {'clientId': 'cid1'", "< 0"),  # from a time on, which RocketMQ ignores
    ("> 15 commitOffset=5", "< 29"),  # of a lite topic that does not exist
]


def test_lite_exchange_is_that_of_rocketmq(tmp_path: Path) -> None:
    recorded = RECORDED.read_text().splitlines()
    found: list[str] = []

    async def story(peer: Peer) -> None:
        found.extend(await probe(peer.broker.address))

    with_broker(story, settings_of(tmp_path, auto_create_topics=False))

    assert [each for each in found if each[0] != "<"] == [each for each in recorded if each[0] != "<"]
    differing = [
        (sent, ours)
        for (sent, ours), (_, theirs) in zip(pairwise(found), pairwise(recorded), strict=True)
        if ours != theirs and ours[0] == "<"
    ]
    for (sent, ours), (request, response) in zip(differing, DIFFERENT, strict=False):
        assert sent.startswith(request)
        assert ours.startswith(response)
    assert len(differing) == len(DIFFERENT), differing
