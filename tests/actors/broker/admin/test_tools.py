"""Requests of administrative tools to a broker, over its socket."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson

from actors.transport.request import RequestContext
from actors.transport.table import RequestTable
from actors.wire.admin_headers import (
    BrokerStatsHeader,
    ClientHeader,
    CloneGroupOffsetHeader,
    ConsumeQueueHeader,
    ConsumerStatusHeader,
    ConsumeStatsHeader,
    DeleteGroupHeader,
    GroupHeader,
    GroupTopicHeader,
    ProducerGroupHeader,
    ResetOffsetHeader,
)
from actors.wire.bodies.broker import BrokerStatsData, ConsumeQueueUnits
from actors.wire.bodies.connected import ConsumerConnection, decode_producers
from actors.wire.bodies.consumer_status import encode_of_member
from actors.wire.bodies.progress import (
    ConsumeStats,
    TopicCountersTable,
    TopicStatsTable,
    decode_consume_stats_list,
    decode_group_list,
    decode_progress_offsets,
    decode_time_spans,
)
from actors.wire.bodies.routes import decode_kv_table, decode_topic_list
from actors.wire.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.headers import (
    ConsumerGroupHeader,
    CreateTopicHeader,
    TopicHeader,
    UpdateConsumerOffsetHeader,
)
from store.message.json_text import parse_rocketmq_json
from store.message.message_queue import MessageQueue
from store.message.record import decode_records
from store.message.tags import tags_code
from tests.actors.broker.brokers import HOLD_MS, Peer, settings_of, with_broker
from tests.conftest import ClockAtRest


async def fill(peer: Peer, count: int, queue_id: int = 0) -> None:
    """Create topic T with two queues, and send `count` messages to one of them."""
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("T", 2, 2, 6).to_ext())
    for number in range(count):
        await peer.send("T", queue_id=queue_id, properties=f"TAGS\x01{'ab'[number % 2]}\x02")


def test_counters_of_all_topics_are_in_one_response(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 3)
        response = await peer.ask(RayMQRequestCode.GET_TOPIC_COUNTERS)
        topics = TopicCountersTable.decode(response.body).topics
        assert (topics["T"].messages, topics["T"].end) == (3, 3)
        assert topics["T"].put_tps > 0
        everything = orjson.loads((await peer.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).body)
        assert topics.keys() == everything["topicConfigTable"].keys()

    with_broker(story, settings_of(tmp_path))


async def progress(peer: Peer, group: str, topic: str | None = "T") -> ConsumeStats:
    answer = await peer.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader(group, topic).to_ext())
    return ConsumeStats.decode(answer.body)


Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def test_topic_stats_report_offsets_timestamps_and_put_rate(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 3)
        answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("T").to_ext())
        stats = TopicStatsTable.decode(answer.body)
        assert {queue: (each.min_offset, each.max_offset) for queue, each in stats.offsets.items()} == {
            Q0: (0, 3),
            Q1: (0, 0),
        }
        newest = (await peer.messages("T", 2))[0]
        assert stats.offsets[Q0].last_update_timestamp == newest.store_timestamp
        assert stats.offsets[Q1].last_update_timestamp == 0
        assert stats.put_tps > 0
        missing = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("none").to_ext())
        assert missing.code == ResponseCode.TOPIC_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


def test_consume_stats_report_offsets_and_lag(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 10)
        messages = await peer.messages("T")
        await peer.commit("CG", "T", 4)
        stats = await progress(peer, "CG")
        at = stats.offsets[Q0]
        assert (at.broker_offset, at.consumer_offset, at.pull_offset) == (10, 4, 10)
        assert (at.lag, at.in_flight, at.last_timestamp) == (6, 6, messages[3].store_timestamp)
        assert stats.consume_tps > 0
        assert (await progress(peer, "CG", None)).offsets == stats.offsets
        spans = await peer.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, GroupTopicHeader("CG", "T").to_ext())
        span = {each.queue: each for each in decode_time_spans(spans.body)}[Q0]
        assert span.min_timestamp == messages[0].store_timestamp
        assert span.max_timestamp == messages[9].store_timestamp
        assert span.consume_timestamp == messages[3].store_timestamp
        assert span.delay_ms >= 0
        every = await peer.ask(RequestCode.GET_BROKER_CONSUME_STATS)
        assert decode_consume_stats_list(every.body)["CG"][0].offsets == stats.offsets
        who = await peer.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, TopicHeader("T").to_ext())
        assert decode_group_list(who.body) == ["CG"]
        topics = await peer.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, GroupHeader("CG").to_ext())
        assert decode_topic_list(topics.body) == ["T"]

    with_broker(story, settings_of(tmp_path))


def test_stats_of_2000_queues_are_complete_and_do_not_delay_sends(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        create = CreateTopicHeader("T", 2000, 2000, 6)
        await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create.to_ext())
        await peer.send("T", queue_id=1999)
        await peer.commit("CG", "T", 1, queue_id=1999)
        requests = [
            peer.ask(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader("CG").to_ext()),
            peer.ask(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader("T").to_ext()),
            peer.send("T", queue_id=7),
        ]
        done = [await answer for answer in asyncio.as_completed(requests)]
        assert "queueOffset" in done[0].ext  # the send did not wait for the statistics
        stats = await progress(peer, "CG")
        assert len(stats.offsets) == 2000
        assert (stats.lag, stats.offsets[MessageQueue("T", "broker-a", 1999)].consumer_offset) == (1, 1)

    with_broker(story, settings_of(tmp_path, {"flush": "async"}))


def test_connected_group_is_listed_with_its_subscriptions(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 1)
        await peer.commit("CG", "T", 1)
        await peer.heartbeat("client-1", "CG", Other="*")
        assert (await progress(peer, "CG")).offsets == {}
        await peer.heartbeat("client-1", "CG", T="a || b")
        assert (await progress(peer, "CG")).offsets[Q0].consumer_offset == 1
        answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader("CG").to_ext())
        group = ConsumerConnection.decode(answer.body)
        assert [each.client_id for each in group.connections] == ["client-1"]
        assert (group.connections[0].language, group.connections[0].version) == ("PYTHON", 479)
        assert group.connections[0].client_addr.startswith("127.0.0.1:")
        subscription = group.subscriptions["T"]
        assert (subscription.sub_string, sorted(subscription.tags_set)) == ("a || b", ["a", "b"])
        assert sorted(subscription.code_set) == [tags_code("a"), tags_code("b")]
        producers = await peer.ask(
            RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupHeader("PG").to_ext()
        )
        assert [each.client_id for each in decode_producers(producers.body)] == ["client-1"]
        table = orjson.loads((await peer.ask(RequestCode.GET_ALL_PRODUCER_INFO)).body)
        assert table["data"]["PG"][0]["clientId"] == "client-1"
        one = await peer.ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, GroupTopicHeader("CG", "T").to_ext())
        assert orjson.loads(one.body)["subscriptionData"]["subString"] == "a || b"

    with_broker(story, settings_of(tmp_path))


def test_group_without_connected_members_is_refused(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        consumers = ConsumerGroupHeader("absent").to_ext()
        answer = await peer.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumers)
        assert (answer.code, answer.remark) == (
            ResponseCode.CONSUMER_NOT_ONLINE,
            "the consumer group[absent] not online",
        )
        producers = ProducerGroupHeader("absent").to_ext()
        answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producers)
        assert answer.code == ResponseCode.SYSTEM_ERROR

    with_broker(story, settings_of(tmp_path))


def test_offset_reset_redirects_next_pull_and_ignores_late_commits(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 6)
        await peer.commit("CG", "T", 6)
        held = asyncio.create_task(peer.pull("T", 6, wait_ms=HOLD_MS))
        await peer.until_held(1)
        header = ResetOffsetHeader("T", "CG", queue_id=0, offset=2)
        answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())
        assert decode_progress_offsets(answer.body) == {Q0: 2}
        redirected = await held
        assert (redirected.code, redirected.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
        await peer.commit("CG", "T", 3)  # after the redirect, commits are accepted again
        assert (await peer.committed("CG", "T")).ext["offset"] == "3"

        await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader("T", "CG", 0).to_ext())
        late = await peer.commit("CG", "T", 5)
        assert (late.code, late.remark) == (ResponseCode.SUCCESS, "Offset has been previously reset")
        assert (await peer.committed("CG", "T")).ext["offset"] == "0"
        assert (await peer.pull("T", 0)).code == ResponseCode.SUCCESS

    with_broker(story, settings_of(tmp_path))


def test_offset_reset_to_a_timestamp_or_to_the_end(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 4)
        await peer.commit("CG", "T", 1)
        fourth = (await peer.messages("T", 3))[0]
        ask = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answer = await peer.ask(ask, ResetOffsetHeader("T", "CG", fourth.store_timestamp + 1).to_ext())
        assert decode_progress_offsets(answer.body) == {Q0: 4, Q1: 0}
        answer = await peer.ask(ask, ResetOffsetHeader("T", "CG", -1).to_ext())
        assert decode_progress_offsets(answer.body)[Q0] == 4

    with_broker(story, settings_of(tmp_path))


def test_invalid_offset_reset_is_refused_with_its_reason(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 4)
        await peer.commit("CG", "T", 1)
        ask = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answers = [
            await peer.ask(ask, ResetOffsetHeader("none", "CG").to_ext()),
            await peer.ask(ask, ResetOffsetHeader("T", "none").to_ext()),
            await peer.ask(ask, ResetOffsetHeader("T", "CG", queue_id=0, offset=9).to_ext()),
        ]
        assert [answer.code for answer in answers] == [
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            ResponseCode.SYSTEM_ERROR,
        ]
        assert "Target offset 9 not in consume queue range [0-4]" in (answers[2].remark or "")

    with_broker(story, settings_of(tmp_path))


def test_offsets_are_cloned_and_deleted_with_the_group(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 4)
        await peer.commit("CG", "T", 3)
        header = UpdateConsumerOffsetHeader("absent", "T", 0, 1)
        refused = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())  # as mqadmin sends it
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert refused.remark == "Group absent not exist!"
        await peer.ask(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetHeader("CG", "CG2").to_ext())
        assert (await peer.committed("CG2", "T")).ext["offset"] == "3"
        await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("CG").to_ext())
        assert (await peer.committed("CG", "T")).ext["offset"] == "3"
        await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteGroupHeader("CG2", True).to_ext())
        assert (await peer.committed("CG2", "T")).code == ResponseCode.QUERY_NOT_FOUND
        config = await peer.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GroupHeader("none").to_ext())
        assert config.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    with_broker(story, settings_of(tmp_path))


def test_runtime_info_reports_rates_and_positions(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 5)
        await peer.messages("T")
        clock.advance(5_000)
        table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("5", "5")
        assert float(table["putTps"].split()[0]) > 0
        assert float(table["getTransferredTps"].split()[2]) > 0
        assert int(table["commitLogMaxOffset"]) > 0
        assert int(table["earliestMessageTimeStamp"]) == (await peer.messages("T"))[0].store_timestamp
        assert table["commitLogDirCapacity"].startswith("Total : ")
        assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 5 seconds ]"
        assert table["putMessageDistributeTime"] == "null"  # within the first minute
        assert table["putMessageEntireTimeMax"] == "0"
        assert table["queryThreadPoolQueueCapacity"] == table["litePullThreadPoolQueueCapacity"] == "100000"
        assert "scheduleMessageOffset_1" not in table
        await peer.send("T", properties="DELAY\x011\x02")
        clock.advance(1_000)
        await peer.pull("T", offset=5, wait_ms=HOLD_MS)
        table = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        assert table["scheduleMessageOffset_1"] == "1,1"

    with_broker(story, settings_of(tmp_path), clock)


def test_broker_stats_are_returned_by_rocketmqs_names(tmp_path: Path, clock: ClockAtRest) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 6)
        await peer.messages("T")
        clock.advance(5_000)

        async def stats(name: str, key: str) -> BrokerStatsData | None:
            header = BrokerStatsHeader(name, key)
            answer = await peer.ask(RequestCode.VIEW_BROKER_STATS_DATA, header.to_ext())
            return BrokerStatsData.decode(answer.body) if answer.code == ResponseCode.SUCCESS else None

        found = {
            name: await stats(name, key)
            for name, key in (
                ("TOPIC_PUT_NUMS", "T"),
                ("TOPIC_PUT_SIZE", "T"),
                ("GROUP_GET_NUMS", "T@CG"),
                ("BROKER_PUT_NUMS", "DefaultCluster"),
                ("BROKER_GET_NUMS", "DefaultCluster"),
            )
        }
        assert {
            name: data.minute.sum for name, data in found.items() if data and "NUMS" in name
        } == dict.fromkeys(("TOPIC_PUT_NUMS", "GROUP_GET_NUMS", "BROKER_PUT_NUMS", "BROKER_GET_NUMS"), 6)
        puts, size = found["TOPIC_PUT_NUMS"], found["TOPIC_PUT_SIZE"]
        assert puts is not None
        assert size is not None
        assert (puts.day.sum, puts.hour.avgpt) == (6, 1.0)
        assert puts.minute.tps > 0
        assert size.minute.sum > 6 * 91
        assert await stats("TOPIC_PUT_NUMS", "none") is None
        assert await stats("NO_SUCH_TABLE", "T") is None

    with_broker(story, settings_of(tmp_path), clock)


def test_consume_queue_units_are_marked_by_the_groups_filter(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        await fill(peer, 5)
        header = ConsumeQueueHeader("T", 0, 1, 3)
        answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, header.to_ext())
        queue = ConsumeQueueUnits.decode(answer.body)
        assert (queue.min_offset, queue.max_offset, len(queue.units)) == (0, 5, 3)
        messages = await peer.messages("T")
        assert [unit.physic_offset for unit in queue.units] == [
            each.commit_log_offset for each in messages[1:4]
        ]
        assert [unit.tags_code for unit in queue.units] == [tags_code(tag) for tag in "bab"]
        assert not any(unit.eval for unit in queue.units)  # RocketMQ's value if the request names no group
        await peer.heartbeat("client-1", "CG", T="a")
        header.consumer_group = "CG"
        answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, header.to_ext())
        queue = ConsumeQueueUnits.decode(answer.body)
        assert [unit.eval for unit in queue.units] == [False, True, False]
        assert queue.subscription is not None
        header.consumer_group = "offline"
        answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, header.to_ext())
        queue = ConsumeQueueUnits.decode(answer.body)
        assert (queue.filter_data, len(queue.units)) == ("offline@T is not online!", 3)
        none = ConsumeQueueHeader("T", 0, 0, 0)
        answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, none.to_ext())
        assert ConsumeQueueUnits.decode(answer.body).units == []
        for wrong, remark in (
            (ConsumeQueueHeader("T", 1, 0, 1), "1@T is not exist!"),
            (ConsumeQueueHeader("T", 0, 5, 1), "Index 5 of 0@T is not exist!"),
        ):
            answer = await peer.ask(RequestCode.QUERY_CONSUME_QUEUE, wrong.to_ext())
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)

    with_broker(story, settings_of(tmp_path))


def test_requests_to_a_member_are_forwarded_by_its_broker(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        def running_info(context: RequestContext) -> RemotingCommand:
            jstack = context.command.ext["jstackEnable"]
            return RemotingCommand.response(
                body=b'{"mqTable":{{"queueId":0}:{}},"jstack":%s}' % jstack.encode()
            )

        def consume(context: RequestContext) -> RemotingCommand:
            [message] = decode_records(context.command.body)
            return RemotingCommand.response(body=message.body)

        pushed = RequestTable()
        pushed.add(RequestCode.GET_CONSUMER_RUNNING_INFO, running_info)
        pushed.add(RequestCode.CONSUME_MESSAGE_DIRECTLY, consume)
        member = Peer(peer.broker, pushed)
        await member.heartbeat("client-1", "CG", T="*")
        header = ClientHeader("CG", "client-1", False)
        answer = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_ext())
        # Java's JSON, with objects as keys, is relayed unchanged.
        assert bytes(answer.body) == b'{"mqTable":{{"queueId":0}:{}},"jstack":false}'
        sent = await peer.send("T", b"again")
        header.msg_id = sent.ext["msgId"]
        answer = await peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header.to_ext())
        assert bytes(answer.body) == b"again"
        header.msg_id = "nonsense"
        answer = await peer.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header.to_ext())
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        header.client_id = "client-2"
        answer = await peer.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_ext())
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "The Consumer <CG> <client-2> not online",
        )
        await member.client.close()

    with_broker(story, settings_of(tmp_path))


def test_consumer_status_collects_the_offsets_of_all_members(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        statuses = {
            "java": b'{"messageQueueTable":{{"brokerName":"}\\"{","queueId":0,"topic":"T"}:5},"more":{}}',
            "python": encode_of_member({MessageQueue("T", "broker-a", 1): 7}),
            "other": b'{"messageQueueTable":{"cut off',
        }
        members = []
        for client_id, body in statuses.items():
            pushed = RequestTable()
            pushed.add(
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                lambda context, body=body: RemotingCommand.response(body=body),
            )
            members.append(Peer(peer.broker, pushed))
            await members[-1].heartbeat(client_id, "CG", T="*")
        ask = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        answer = await peer.ask(ask, ConsumerStatusHeader("T", "CG").to_ext())
        java = b'"java":{{"brokerName":"}\\"{","queueId":0,"topic":"T"}:5}'
        assert java in bytes(answer.body)
        assert b'"other"' not in bytes(answer.body)
        answer = await peer.ask(ask, ConsumerStatusHeader("T", "CG", "python").to_ext())
        table = parse_rocketmq_json(answer.body)["consumerTable"]["python"]
        assert [(orjson.loads(queue)["queueId"], offset) for queue, offset in table.items()] == [(1, 7)]
        answer = await peer.ask(ask, ConsumerStatusHeader("T", "CG", "absent").to_ext())
        assert orjson.loads(answer.body)["consumerTable"] == {}
        answer = await peer.ask(ask, ConsumerStatusHeader("T", "offline").to_ext())
        assert (answer.code, "No Any Consumer online" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
        for member in members:
            await member.client.close()

    with_broker(story, settings_of(tmp_path))
