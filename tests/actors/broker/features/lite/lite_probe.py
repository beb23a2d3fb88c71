"""An exchange about lite topics and priorities with a broker, as lines that do not depend on time.

    python -m tests.actors.broker.features.lite.lite_probe HOST:PORT

prints it. `tests/fixtures/rocketmq-5.5.0-lite.txt` has that of RocketMQ 5.5.0 with a new store and the
settings `enableLmq` and `enableMultiDispatch`.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import orjson

from actors.transport.client import RemotingClient
from actors.transport.limits import RemotingLimits
from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from store.common.clock import SystemClock
from store.message.properties import MessageConst
from store.message.record import decode_records
from tests.eventually import LIMIT_S, eventually_async

TOPIC, GROUP, CLIENT = "LiteT", "LiteOffset", "cid1"
LMQ = "%LMQ%$LiteT$a"
TIMEOUT_MS = int(LIMIT_S * 1000)
LONG_MS = 60_000
ANSWERS = {0, 19, 21, 210}
"""Codes of responses with fields."""
IGNORED = {
    "TRACE_ON", "MSG_REGION", "count", "groupSysFlag", "topicSysFlag", "filterData", "queueData", "msgId",
    "indexLastUpdateTimestamp", "indexLastUpdatePhyoffset", "transactionId", "brokerAddr", "consumeTps",
    "topicPutTps", "cqTableSize", "offsetTableSize", "maxLmqNum", "eventMapSize", "lagTimestampTopK",
    "consumeTimeStampStr", "maxTimeStampStr", "minTimeStampStr", "delayTime",
}  # fmt: skip
"""Fields that depend on the process, or that no client needs."""
TIME = re.compile(r"\b\d{13}\b")
RATE_OR_ORIGIN = re.compile(r',?"(?:topicPutTps|consumeTps|raymqOrigin)":[^,}]+,?')
TOPICS = {
    "PlainT": {},
    "PrioT": {"message.type": "PRIORITY"},
    TOPIC: {"message.type": "LITE", "lite.topic.expiration": "60"},
}
GROUPS = {
    "PrioG": {},
    GROUP: {"lite.bind.topic": TOPIC},
    "LiteExcl": {"lite.bind.topic": TOPIC, "lite.sub.model": "Exclusive"},
    "LiteWild": {"lite.bind.topic": TOPIC, "lite.sub.wildcard": "true"},
    "LiteTtl": {"lite.bind.topic": "LiteT2"},
}


class Probe:
    """The exchange; `lines` has what was sent and received."""

    def __init__(self, address: str) -> None:
        self.lines: list[str] = []
        self.pushed: list[str] = []
        self._address = address
        table = RequestTable()
        table.add(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, self._notified)
        limits = RemotingLimits(connect_timeout_ms=TIMEOUT_MS)
        self._clients = [RemotingClient(SystemClock(), each, limits) for each in (table, None)]

    def _notified(self, context: RequestContext) -> None:
        self.pushed.append(_fields(context.command.ext))

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def ask(
        self, code: int, body: Any = b"", client: int = 0, label: str = "", **ext: Any
    ) -> RemotingCommand:
        """Send a request, and note it with the response."""
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        fields = {name: str(value) for name, value in ext.items()}
        command = RemotingCommand(code, fields, content)
        response = await self._clients[client].invoke(self._address, command, TIMEOUT_MS)
        sent = label or " ".join(filter(None, [_fields(fields), content.decode()]))
        shown = f"{_fields(response.ext)} {_body(bytes(response.body))}" if response.code in ANSWERS else ""
        self.lines += [f"> {int(code)} {sent}".rstrip(), f"< {response.code} {shown}".rstrip()]
        return response

    async def send(
        self, topic: str, queue_id: int, properties: dict[str, str], text: str = "x", client: int = 0
    ) -> None:
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        header = {
            "a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": int(time.time() * 1000),
            "h": 0, "i": encoded, "j": 0, "k": "false", "l": 0, "m": "false",
        }  # fmt: skip
        label = f"{topic} {queue_id} {properties} {text}"
        await self.ask(RequestCode.SEND_MESSAGE_V2, text.encode(), client, label, **header)

    async def sync(
        self,
        action: str,
        client_id: str,
        group: str,
        names: Sequence[str],
        topic: str = TOPIC,
        client: int = 0,
        **fields: Any,
    ) -> None:
        entry = {
            "action": action, "clientId": client_id, "group": group, "topic": topic,
            "liteTopicSet": names, "version": 0, **fields,
        }  # fmt: skip
        await self.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {"subscriptionSet": [entry]}, client)

    async def pop(
        self,
        client_id: str,
        group: str,
        count: int = 32,
        invisible_ms: int = LONG_MS,
        poll_ms: int = 0,
        topic: str = TOPIC,
        **ext: Any,
    ) -> RemotingCommand:
        fields = {
            "clientId": client_id, "consumerGroup": group, "topic": topic, "maxMsgNum": count,
            "invisibleTime": invisible_ms, "pollTime": poll_ms,
        } | ext  # fmt: skip
        now_ms = int(time.time() * 1000)
        return await self.ask(RequestCode.POP_LITE_MESSAGE, label=f"{fields}", bornTime=now_ms, **fields)

    async def ack(
        self,
        group: str,
        offset: int,
        popped: RemotingCommand,
        revive: int = 999,
        queue_id: int = 0,
        earlier_ms: int = 0,
    ) -> None:
        await self.ask(
            RequestCode.ACK_MESSAGE, label=f"{group} a {offset} {revive} {queue_id} {earlier_ms}",
            **_receipt(group, offset, popped, revive, queue_id, earlier_ms),
        )  # fmt: skip

    async def change(self, offset: int, popped: RemotingCommand, invisible_ms: int, **ext: str) -> None:
        await self.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, label=f"{offset} {invisible_ms} {ext}",
            invisibleTime=invisible_ms, **ext, **_receipt(GROUP, offset, popped),
        )  # fmt: skip

    def title(self, text: str) -> None:
        self.lines.append(f"== {text}")

    # ---- the exchange --------------------------------------------------------------------------------------

    async def run(self) -> list[str]:
        """Return the lines."""
        for part in (
            self._create, self._send, self._subscribe, self._pop, self._redeliver, self._take_over,
            self._move, self._refuse, self._describe, self._read_by_name, self._differ,
        ):  # fmt: skip
            await part()
        return self.lines

    async def _create(self) -> None:
        self.title("create")
        for topic, attributes in TOPICS.items():
            await self.ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, defaultTopic="TBW102", readQueueNums=4,
                writeQueueNums=4, perm=6, topicFilterType="SINGLE_TAG", order="false",
                attributes=",".join(f"+{name}={value}" for name, value in attributes.items()),
            )  # fmt: skip
        for group, attributes in GROUPS.items():
            config = {
                "groupName": group,
                "attributes": {f"+{name}": value for name, value in attributes.items()},
            }
            await self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config)

    async def _send(self) -> None:
        self.title("priorities")
        for value in ("0", "2", "3", "7", "-1", "x"):
            await self.send("PrioT", 1, {MessageConst.PRIORITY: value, "UNIQ_KEY": f"U{value}"})
        await self.send("PlainT", 1, {MessageConst.PRIORITY: "3"})
        await self.send("PrioT", 1, {})
        await self.send("PrioT", 1, {MessageConst.PRIORITY: "2", "__SHARDINGKEY": "k"})
        self.title("lite messages")
        for number in range(4):
            await self.send(TOPIC, 2, {MessageConst.LITE_TOPIC: "a"}, f"m{number}")

    async def _subscribe(self) -> None:
        self.title("pop before a subscription, invalid subscriptions")
        await self.pop(CLIENT, GROUP)
        await self.ask(RequestCode.LITE_SUBSCRIPTION_CTL)
        await self.sync("PARTIAL_ADD", "", GROUP, ["a"])

    async def _pop(self) -> None:
        self.title("pop, batch in flight, attempt id")
        await self.sync("PARTIAL_ADD", CLIENT, GROUP, ["a"])
        await self.pop(CLIENT, GROUP, 2, attemptId="A1")
        await self.pop(CLIENT, GROUP)
        await self.send(TOPIC, 2, {MessageConst.LITE_TOPIC: "a"}, "m4")
        await self.pop(CLIENT, GROUP)
        await self.send(TOPIC, 2, {MessageConst.LITE_TOPIC: "a"}, "m5")
        popped = await self.pop(CLIENT, GROUP, 2, attemptId="A1")
        self.title("acks")
        for group, offset, more in (
            (GROUP, 0, {}), (GROUP, 0, {}), (GROUP, 1, {"earlier_ms": 1}), (GROUP, 99, {}),
            (GROUP, 1, {"revive": 3}), (GROUP, 1, {"queue_id": 1}), ("PrioG", 1, {}), (GROUP, 1, {}),
        ):  # fmt: skip
            await self.ack(group, offset, popped, **more)

    async def _redeliver(self) -> None:
        self.title("another invisible time, redelivery")
        popped = await self.pop(CLIENT, GROUP)
        await self.change(2, popped, 1_500)
        await self.change(99, popped, 1_500)
        for offset in (3, 4, 5):
            await self.ack(GROUP, offset, popped)
        popped = await self.pop(CLIENT, GROUP, poll_ms=LONG_MS)
        self.title("suspend")
        await self.change(2, popped, 1_000, suspend="true")
        popped = await self.pop(CLIENT, GROUP, poll_ms=LONG_MS)
        for offset in (2, 3, 4, 5):
            await self.ack(GROUP, offset, popped)
        self.title("held pop")
        begin = len(self.lines)
        held = asyncio.create_task(self.pop(CLIENT, GROUP, poll_ms=LONG_MS))
        await asyncio.sleep(0)
        await self.send(TOPIC, 0, {MessageConst.LITE_TOPIC: "a"}, "m6", client=1)
        popped = await held
        if self.lines[begin].startswith("> 200070"):  # either response may be the first one
            self.lines[begin:] = [*self.lines[begin + 2 :], *self.lines[begin : begin + 2]]
        await self.ack(GROUP, 6, popped)

    async def _take_over(self) -> None:
        self.title("an exclusive group")
        await self.sync("PARTIAL_ADD", "x1", "LiteExcl", ["a"])
        await self.sync("PARTIAL_ADD", "x2", "LiteExcl", ["a"], client=1)
        await eventually_async(lambda: bool(self.pushed))
        self.lines.append(f"pushed {self.pushed}")
        for client_id in ("x1", "x2"):
            await self.ask(
                RequestCode.GET_LITE_CLIENT_INFO,
                parentTopic=TOPIC,
                group="LiteExcl",
                clientId=client_id,
                maxCount=10,
            )
        await self.ask(RequestCode.GET_LITE_TOPIC_INFO, parentTopic=TOPIC, liteTopic="a")

    async def _move(self) -> None:
        self.title("offset options")
        for kind, value in (("POLICY", 1), ("POLICY", 2), ("POLICY", 0), ("OFFSET", 3), ("TAIL_N", 2)):
            await self.sync("PARTIAL_ADD", CLIENT, GROUP, ["a"], offsetOption={"type": kind, "value": value})
            await self.ask(RequestCode.TRIGGER_LITE_DISPATCH, group=GROUP)
            popped = await self.pop(CLIENT, GROUP, 1)
            if popped.body:
                [record] = decode_records(popped.body)
                await self.ack(GROUP, int(record.properties[MessageConst.INNER_MULTI_QUEUE_OFFSET]), popped)
            await self.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic=LMQ, queueId=0)
        self.title("a group of a wildcard")
        await self.sync("PARTIAL_ADD", "w1", "LiteWild", ["a"])
        await self.sync("COMPLETE_ADD", "w1", "LiteWild", [])
        await self.ask(
            RequestCode.GET_LITE_CLIENT_INFO, parentTopic=TOPIC, group="LiteWild", clientId="w1", maxCount=10
        )
        await self.pop("w1", "LiteWild", poll_ms=LONG_MS)

    async def _refuse(self) -> None:
        self.title("refused pops")
        for group, topic, count in (
            (GROUP, TOPIC, 33), (GROUP, "PlainT", 32), ("NoGroup", TOPIC, 32), ("PrioG", TOPIC, 32),
            ("LiteTtl", TOPIC, 32), (GROUP, "NoTopic", 32),
        ):  # fmt: skip
            await self.pop(CLIENT, group, count, topic=topic)

    async def _describe(self) -> None:
        self.title("admin")
        code, client = RequestCode, {"parentTopic": TOPIC, "group": GROUP, "clientId": CLIENT}
        for request, ext in (
            (code.GET_BROKER_LITE_INFO, {}),
            (code.GET_PARENT_TOPIC_INFO, {"topic": TOPIC}),
            (code.GET_PARENT_TOPIC_INFO, {"topic": "PlainT"}),
            (code.GET_PARENT_TOPIC_INFO, {"topic": "NoTopic"}),
            (code.GET_LITE_TOPIC_INFO, {"parentTopic": TOPIC, "liteTopic": "a"}),
            (code.GET_LITE_TOPIC_INFO, {"parentTopic": TOPIC, "liteTopic": "nothing"}),
            (code.GET_LITE_TOPIC_INFO, {"parentTopic": "PlainT", "liteTopic": "a"}),
            (code.GET_LITE_TOPIC_INFO, {"parentTopic": "NoTopic", "liteTopic": "a"}),
            (code.GET_LITE_CLIENT_INFO, client | {"maxCount": 10}),
            (code.GET_LITE_CLIENT_INFO, client | {"clientId": "unknown"}),
            (code.GET_LITE_CLIENT_INFO, client | {"group": "PrioG"}),
            (code.GET_LITE_CLIENT_INFO, client | {"group": "NoSuch"}),
            (code.GET_LITE_CLIENT_INFO, client | {"parentTopic": "PlainT"}),
            (code.GET_LITE_CLIENT_INFO, client | {"group": "LiteTtl"}),
            (code.GET_LITE_GROUP_INFO, {"group": GROUP, "liteTopic": "a", "topK": 0}),
            (code.GET_LITE_GROUP_INFO, {"group": GROUP, "liteTopic": "nothing", "topK": 0}),
            (code.GET_LITE_GROUP_INFO, {"group": "LiteExcl", "liteTopic": "a", "topK": 0}),
            (code.GET_LITE_GROUP_INFO, {"group": GROUP, "topK": 3}),
            (code.GET_LITE_GROUP_INFO, {"group": "LiteExcl", "topK": 3}),
            (code.GET_LITE_GROUP_INFO, {"group": "PrioG", "topK": 3}),
            (code.GET_LITE_GROUP_INFO, {"group": "NoSuch", "topK": 3}),
            (code.TRIGGER_LITE_DISPATCH, {"group": GROUP}),
            (code.TRIGGER_LITE_DISPATCH, {"group": GROUP, "clientId": CLIENT}),
            (code.TRIGGER_LITE_DISPATCH, {"group": GROUP, "clientId": "unknown"}),
            (code.TRIGGER_LITE_DISPATCH, {"group": "PrioG"}),
            (code.TRIGGER_LITE_DISPATCH, {"group": "NoSuch"}),
            (200_072, {}),
        ):  # fmt: skip
            await self.ask(request, **ext)

    async def _read_by_name(self) -> None:
        self.title("requests with the name of the light message queue")
        code = RequestCode
        await self._pull()
        await self.ask(code.UPDATE_CONSUMER_OFFSET, topic=LMQ, queueId=0, consumerGroup=GROUP, commitOffset=5)
        for topic in (LMQ, "%LMQ%$LiteT$nothing"):
            for request, ext in (
                (code.GET_MAX_OFFSET, {}),
                (code.GET_MIN_OFFSET, {}),
                (code.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": 0}),
                (code.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": 2**41}),
                (code.GET_EARLIEST_MSG_STORETIME, {}),
                (code.QUERY_CONSUMER_OFFSET, {"consumerGroup": GROUP}),
                (code.QUERY_CONSUMER_OFFSET, {"consumerGroup": "LiteTtl"}),
                (code.QUERY_CONSUMER_OFFSET, {"consumerGroup": GROUP}),
                (code.QUERY_CONSUME_QUEUE, {"index": 0, "count": 2, "consumerGroup": ""}),
                (code.GET_TOPIC_STATS_INFO, {}),
                (code.GET_CONSUME_STATS, {"consumerGroup": GROUP}),
                (code.QUERY_TOPIC_CONSUME_BY_WHO, {}),
                (code.QUERY_CONSUME_TIME_SPAN, {"group": GROUP}),
                (code.GET_TOPIC_CONFIG, {}),
                (code.INVOKE_BROKER_TO_RESET_OFFSET, {"group": GROUP, "timestamp": 0, "offset": 2}),
                (code.QUERY_CONSUMER_OFFSET, {"consumerGroup": GROUP}),
                (code.QUERY_MESSAGE, {"key": "U", "maxNum": 3, "beginTimestamp": 0, "endTimestamp": 1}),
            ):  # fmt: skip
                await self.ask(request, topic=topic, queueId=0, **ext)
        await self.ask(code.GET_MAX_OFFSET, topic=TOPIC, queueId=0, liteTopic="a")
        await self.ask(code.QUERY_TOPICS_BY_CONSUMER, group=GROUP)
        await self.ask(code.GET_CONSUME_STATS, consumerGroup=GROUP)
        await self.ask(code.QUERY_TOPIC_CONSUME_BY_WHO, topic=TOPIC)

    async def _pull(self) -> None:
        for topic, group, more in (
            (TOPIC, "PrioG", {"liteTopic": "a"}),
            (TOPIC, GROUP, {"liteTopic": "a"}),
            (TOPIC, GROUP, {"liteTopic": "nothing"}),
            (LMQ, "PrioG", {}),
            (LMQ, GROUP, {}),
            ("%LMQ%$LiteT$nothing", GROUP, {}),
        ):
            for offset in (1, 7, 9):
                await self.ask(
                    RequestCode.PULL_MESSAGE, consumerGroup=group, topic=topic, queueId=0, queueOffset=offset,
                    maxMsgNums=2, sysFlag=6, commitOffset=0, suspendTimeoutMillis=0, subscription="*",
                    subVersion=0, **more,
                )  # fmt: skip

    async def _differ(self) -> None:
        self.title("what RayMQ refuses, or does otherwise")
        await self.send(TOPIC, 2, {}, "none")
        await self.send("PlainT", 2, {MessageConst.LITE_TOPIC: "b"}, "plain")
        await self.send(LMQ, 0, {})
        await self.sync("PARTIAL_ADD", CLIENT, "NoGroup", ["a"])
        await self.sync("PARTIAL_ADD", CLIENT, GROUP, ["a"], topic="PlainT")
        await self.sync("COMPLETE_ADD", "x1", "LiteExcl", ["a"])
        await self.ask(RequestCode.GET_LITE_TOPIC_INFO, parentTopic=TOPIC, liteTopic="a")
        await self.sync("PARTIAL_ADD", CLIENT, GROUP, ["a"], offsetOption={"type": "TIMESTAMP", "value": 1})
        await self.ask(RequestCode.TRIGGER_LITE_DISPATCH, group=GROUP)
        await self.pop(CLIENT, GROUP, 1)
        await self.sync("COMPLETE_REMOVE", CLIENT, GROUP, [])
        await self.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            topic="%LMQ%$LiteT$nothing",
            queueId=0,
            consumerGroup=GROUP,
            commitOffset=5,
        )


def _receipt(
    group: str,
    offset: int,
    popped: RemotingCommand,
    revive: int = 999,
    queue_id: int = 0,
    earlier_ms: int = 0,
) -> dict[str, Any]:
    pop_ms = int(popped.ext.get("popTime", 0)) - earlier_ms
    info = f"{offset} {pop_ms} {LONG_MS} {revive} 0 broker-a {queue_id} {offset}"
    return {
        "consumerGroup": group,
        "topic": TOPIC,
        "queueId": queue_id,
        "offset": offset,
        "liteTopic": "a",
        "extraInfo": info,
    }


def _fields(ext: dict[str, str]) -> str:
    """Return fields without what depends on time; a time after a change of it is rounded."""
    shown = {name: value for name, value in sorted(ext.items()) if name not in IGNORED}
    if shown.get("invisibleTime", "").isdecimal():
        shown["invisibleTime"] = str(round(int(shown["invisibleTime"]), -3))
    return TIME.sub("*", ",".join(f"{name}={value}" for name, value in shown.items()))


def _body(body: bytes) -> str:
    if body.startswith((b"{", b"[")):
        try:
            text = orjson.dumps(_content(orjson.loads(body)), option=orjson.OPT_SORT_KEYS).decode()
        except orjson.JSONDecodeError:  # RocketMQ writes objects as keys
            text = RATE_OR_ORIGIN.sub("", body.decode())
        return TIME.sub("*", text)
    places = (MessageConst.INNER_MULTI_DISPATCH, MessageConst.INNER_MULTI_QUEUE_OFFSET)
    return " ".join(
        f"[{each.body.decode()} {each.topic} {each.queue_id} {each.queue_offset} "
        f"{' '.join(each.properties.get(name, '-') for name in places)}]"
        for each in decode_records(body)
    )


def _content(value: Any) -> Any:
    """Return JSON values with sorted lists."""
    if isinstance(value, dict):
        return {key: _content(each) for key, each in value.items() if key not in IGNORED}
    return sorted(map(_content, value), key=orjson.dumps) if isinstance(value, list) else value


async def probe(address: str) -> list[str]:
    """Return the exchange with a broker."""
    found = Probe(address)
    try:
        return await found.run()
    finally:
        await found.close()


if __name__ == "__main__":
    sys.stdout.write("".join(f"{line}\n" for line in asyncio.run(probe(sys.argv[1]))))
