"""The figures of a broker: the responses that show them keep their keys and the types of their values."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from actors.wire.bodies.routes import decode_kv_table
from actors.wire.codes import RayMQRequestCode, RequestCode
from tests.actors.broker.brokers import A_DAY_MS, Peer, settings_of, with_broker
from tests.conftest import ClockAtRest

DESCRIBED = {
    "str": """address broker cluster drain_state flush hidden_because role store_id store_root
        write_refusal""",
    "int": """background_task_failures broker_id cold_reads confirmed connections dead_letters_pending
        hidden_bytes
        delayed_messages_skipped dispatched epoch flushed flushes groups held_pulls log_holes longest_flush_us
        longest_lag_us loop_lag_p50_us loop_lag_p99_us messages_in messages_out messages_sent_back
        messages_skipped min_position mixed_request_modes needed_log_files_deleted open_transactions pid
        pop_in_flight
        pop_messages_deleted pop_revived pop_stored_claims replica requests_refused retries_pending
        sends_waiting topics transactions_discarded turns unread_bytes written""",
    "float": "disk_percent",
    "list": "loop_lag_buckets",
}
DESCRIBED_WITH_TIMER = {
    "int": """pending_timers timer_congest_num timer_messages_skipped timer_offset_behind timer_read_behind
        timer_rounds""",
    "float": "timer_dequeue_tps timer_enqueue_tps",
}
RUNTIME = {
    "int": """EndTransactionQueueSize EndTransactionThreadPoolQueueCapacity ackThreadPoolQueueCapacity
        ackThreadPoolQueueHeadWaitTimeMills ackThreadPoolQueueSize bootTimestamp brokerVersion
        commitLogMaxOffset commitLogMinOffset deadLettersPending dispatchBehindBytes dispatchMaxBuffer
        earliestMessageTimeStamp getMessageEntireTimeMax heldPulls litePullThreadPoolQueueCapacity
        litePullThreadPoolQueueHeadWaitTimeMills litePullThreadPoolQueueSize loopLagMaxMicros loopLagP50Micros
        loopLagP99Micros messagesSentBack mixedRequestModes msgGetTotalTodayMorning msgGetTotalTodayNow
        msgGetTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow msgPutTotalYesterdayMorning
        openTransactions pageCacheLockTimeMills popInFlight popMessagesDeleted popRevived popStoredClaims
        pullThreadPoolQueueCapacity
        pullThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueSize putMessageEntireTimeMax
        putMessageFailedTimes putMessageSizeTotal
        putMessageTimesTotal queryThreadPoolQueueCapacity queryThreadPoolQueueHeadWaitTimeMills
        queryThreadPoolQueueSize remainTransientStoreBufferNumbs retriesPending sendThreadPoolQueueCapacity
        sendThreadPoolQueueHeadWaitTimeMills sendThreadPoolQueueSize startAcceptSendRequestTimeStamp
        timerCongestNum timerOffsetBehind timerReadBehind""",
    "float": """commitLogDiskRatio commitLogDiskRatio_{root}/commitlog consumeQueueDiskRatio putLatency99
        putLatency999 putMessageAverageSize timerDequeueTps timerEnqueueTps""",
    "3 float": "getFoundTps getMissTps getTotalTps getTransferredTps putTps",
    "61 int": "loopLagBuckets",
    "str": """brokerActive brokerVersionDesc commitLogDirCapacity drainState putMessageDistributeTime
        remainHowManyDataToFlush runtime scheduleMessageOffset_1""",
}
RUNTIME_WITH_TIMER = {"int": "pendingTimers timerMessagesSkipped timerRounds"}


def shape(value: Any) -> str:
    """Return the type of a value; of a text with numbers only, their type, and their number if above 1."""
    if not isinstance(value, str):
        return type(value).__name__
    words = value.split()
    try:
        kinds = {"int" if word.lstrip("-").isdigit() else type(float(word)).__name__ for word in words}
    except ValueError:
        return "str"
    return f"{len(words)} {kinds.pop()}".removeprefix("1 ") if len(kinds) == 1 else "str"


def by_name(*tables: dict[str, str], root: str = "") -> dict[str, str]:
    """Return the type of each name of `tables`, which have the names by type."""
    return {
        name.format(root=root): kind
        for table in tables
        for kind, names in table.items()
        for name in names.split()
    }


@pytest.mark.parametrize("has_timer", [True, False])
def test_figures_keep_their_names_and_types(tmp_path: Path, clock: ClockAtRest, has_timer: bool) -> None:
    async def story(peer: Peer) -> None:
        await peer.send("T", properties="DELAY\x011\x02")
        clock.advance(1000)
        await peer.pull("T", wait_ms=A_DAY_MS)  # until the delayed message is delivered
        described = orjson.loads((await peer.ask(RayMQRequestCode.DESCRIBE_BROKER)).body)
        runtime = decode_kv_table((await peer.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        more, more_runtime = (DESCRIBED_WITH_TIMER, RUNTIME_WITH_TIMER) if has_timer else ({}, {})
        assert {name: shape(value) for name, value in described.items()} == by_name(DESCRIBED, more)
        root = str(peer.broker.settings.store_root)
        assert {name: shape(value) for name, value in runtime.items()} == by_name(
            RUNTIME, more_runtime, root=root
        )
        assert list(runtime) == sorted(runtime)

    with_broker(story, settings_of(tmp_path, timer_wheel_enable=has_timer), clock)


def test_figures_have_one_declaration_each(tmp_path: Path) -> None:
    async def story(peer: Peer) -> None:
        figures = peer.figures
        for names in (
            [each.name for each in figures],
            [name for each in figures for name in each.runtime_names],
        ):
            assert [name for name, count in Counter(names).items() if count > 1] == []

    with_broker(story, settings_of(tmp_path))
