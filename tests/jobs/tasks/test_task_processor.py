"""RayMQTaskProcessor in this process: enqueue, run, retry, fail, cancel, order, and what it reports."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from ray.serve.schema import TaskProcessorConfig, TaskResult

from cluster.client import PopConsumer, Producer
from jobs.job_errors import BodyInvalid, OptionInvalid
from jobs.tasks import RayMQTaskProcessor
from store.message.message import MessageExt
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S, NEVER_S, eventually, eventually_async
from tests.jobs.tasks.processors import Processors, result_of


def add(a: int, b: int = 0) -> int:
    return a + b


async def is_done(found: Coroutine[Any, Any, TaskResult]) -> bool:
    return (await found).status == "SUCCESS"


def received(cluster: Cluster, topic: str) -> MessageExt:
    with PopConsumer(cluster.address, f"{topic}-readers") as consumer:
        (message,) = consumer.receive(topic, timeout_ms=int(LIMIT_S * 1000))
        return message


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_task_runs_and_its_result_is_stored(processors: Processors, serializer: str) -> None:
    processor = processors.make(add, serializer=serializer)

    enqueued = processor.enqueue_task_sync("add", args=[1], kwargs={"b": 2})

    assert (enqueued.status, enqueued.result) == ("PENDING", None)
    found = result_of(processor, enqueued.id)
    assert (found.id, found.status, found.result) == (enqueued.id, "SUCCESS", 3)
    assert found.created_at is not None
    assert abs(found.created_at - time.time()) < LIMIT_S


def test_bytes_are_passed_by_msgpack_and_refused_by_json(processors: Processors) -> None:
    processor = processors.make(len, serializer="msgpack")
    assert result_of(processor, processor.enqueue_task_sync("len", [b"abc"]).id).result == 3
    with pytest.raises(BodyInvalid, match="serializer='msgpack'"):
        processors.make(serializer="json").enqueue_task_sync("len", [b"abc"])


def test_async_methods_do_what_the_blocking_ones_do(processors: Processors) -> None:
    processor = processors.make(add)

    async def use() -> None:
        enqueued = await processor.enqueue_task_async("add", [2], {"b": 3})
        status = processor.get_task_status_async
        await eventually_async(lambda: is_done(status(enqueued.id)))
        assert (await status(enqueued.id)).result == 5
        later = await processor.enqueue_task_async("add", [2], countdown=3600)
        await processor.cancel_task_async(later.id)
        assert (await processor.get_task_status_async(later.id)).status == "REVOKED"
        assert (await processor.get_metrics_async())["replica"]["succeeded"] == 1
        assert (await processor.health_check_async())[0] == {"this replica": {"ok": True, "error": None}}

    asyncio.run(use())


def test_coroutine_handlers_run_beside_each_other(processors: Processors) -> None:
    arrived: list[asyncio.Event] = []

    async def meet() -> str:
        arrived.append(asyncio.Event())
        if len(arrived) == 3:
            for each in arrived:
                each.set()
        await arrived[len(arrived) - 1].wait() if len(arrived) < 3 else None
        return "met"

    processor = processors.make(meet)
    ids = [processor.enqueue_task_sync("meet").id for _ in range(3)]
    assert {result_of(processor, each).result for each in ids} == {"met"}


@pytest.mark.parametrize("task_id", [None, "order-7"])
def test_failed_handler_is_retried_and_then_succeeds(processors: Processors, task_id: str | None) -> None:
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")
        return len(calls)

    processor = processors.make(flaky)
    found = result_of(processor, processor.enqueue_task_sync("flaky", task_id=task_id).id)
    assert (found.status, found.result) == ("SUCCESS", 3)


@pytest.mark.slow
def test_retries_are_not_limited_by_the_broker(clusters: Callable[..., Cluster]) -> None:
    processors = Processors(clusters(pop_dead_letters=True).address)
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) <= 18:  # a broker's limit is 16 by default
            raise ValueError("not yet")
        return len(calls)

    processor = processors.make(flaky, max_retries=None, retry_backoff_ms=0)
    found = result_of(processor, processor.enqueue_task_sync("flaky").id)
    assert (found.status, found.result) == ("SUCCESS", 19)
    processors.stop()


def test_coroutine_that_cancels_itself_is_retried(processors: Processors) -> None:
    calls: list[int] = []

    async def flaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise asyncio.CancelledError
        return len(calls)

    processor = processors.make(flaky)
    found = result_of(processor, processor.enqueue_task_sync("flaky").id)
    assert (found.status, found.result) == ("SUCCESS", 2)


def test_task_is_moved_to_the_failed_queue_after_its_retries(
    cluster: Cluster, processors: Processors
) -> None:
    calls: list[int] = []

    def broken(number: int) -> None:
        calls.append(number)
        raise ValueError("no such image")

    processor = processors.make(broken, max_retries=2)
    task_id = processor.enqueue_task_sync("broken", [7]).id

    found = result_of(processor, task_id)
    assert (found.status, found.result) == ("FAILURE", "ValueError: no such image")
    assert calls == [7, 7, 7]
    message = received(cluster, f"{processors.queue}-failed")
    assert message.keys == task_id
    assert message.properties["error"] == "ValueError: no such image"


def test_unreadable_task_and_one_without_handler_are_unprocessable(
    cluster: Cluster, processors: Processors
) -> None:
    processor = processors.make(add)
    task_id = processor.enqueue_task_sync("subtract").id

    found = result_of(processor, task_id)
    assert (found.status, found.result) == ("FAILURE", "no handler is named 'subtract'; known: add")
    assert received(cluster, f"{processors.queue}-unprocessable").keys == task_id

    with Producer(cluster.address) as producer:
        producer.send(processors.queue, b"\xff not a task", keys="someone")
    message = eventually(lambda: received(cluster, f"{processors.queue}-unprocessable"))
    assert (message.body, message.keys) == (b"\xff not a task", "someone")
    eventually(lambda: processor.get_metrics_sync()["waiting"] == 0)


@pytest.mark.parametrize("result", [object(), os.urandom(5 << 20).hex()], ids=["object", "6 MiB"])
def test_result_that_cannot_be_stored_is_a_failure_without_retries(
    processors: Processors, result: object
) -> None:
    calls: list[int] = []

    def huge() -> object:
        calls.append(1)
        return result

    processor = processors.make(huge)
    found = result_of(processor, processor.enqueue_task_sync("huge").id)
    assert found.status == "FAILURE"
    assert "result of the handler is invalid" in found.result
    assert calls == [1]


def test_second_task_with_an_id_does_not_run(processors: Processors) -> None:
    ran: list[int] = []
    sender = processors.make()
    for number in range(5):
        sender.enqueue_task_sync("ran", [number], task_id="order-7")

    processor = processors.make(ran.append, max_retries=0)
    processor.register_task_handle(ran.append, "ran")
    found = result_of(processor, "order-7")
    eventually(lambda: processor.get_metrics_sync()["replica"].get("skipped") == 4)
    assert found.status == "SUCCESS"
    assert ran == [0]


def test_tasks_of_a_group_key_run_in_order_also_when_one_is_retried(processors: Processors) -> None:
    ran: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    failed: set[tuple[str, int]] = set()

    def note(user: str, number: int) -> None:
        if number % 3 == 0 and (user, number) not in failed:
            failed.add((user, number))
            raise ValueError("first attempt")
        ran[user].append(number)

    sender = processors.make(ordered=True)
    ids = [
        sender.enqueue_task_sync("note", [user, number], group_key=user).id
        for number in range(6)
        for user in sorted(ran)
    ]
    for _ in range(2):
        processors.make(note, ordered=True)
    assert {result_of(sender, each).status for each in ids} == {"SUCCESS"}
    assert list(ran.values()) == [list(range(6))] * 3


def test_ordered_task_fails_after_its_retries_and_its_queue_continues(processors: Processors) -> None:
    attempts: list[int] = []

    def note(number: int) -> int:
        attempts.append(number)
        if number == 0:
            raise ValueError("never")
        return number

    processor = processors.make(note, ordered=True, max_retries=2)
    ids = [processor.enqueue_task_sync("note", [number], group_key="a").id for number in range(2)]
    assert [result_of(processor, each).status for each in ids] == ["FAILURE", "SUCCESS"]
    assert attempts == [0, 0, 0, 1]


@pytest.mark.parametrize("option", ["countdown", "eta", "eta_datetime"])
def test_task_with_a_time_runs_then(processors: Processors, option: str) -> None:
    ran: list[float] = []
    processor = processors.make(lambda: ran.append(time.time()), max_retries=0)
    processor.register_task_handle(lambda: ran.append(time.time()), "note")
    begin_s = time.time()
    due = {
        "countdown": 1,
        "eta": begin_s + 1,
        "eta_datetime": datetime.fromtimestamp(begin_s, UTC) + timedelta(seconds=1),
    }[option]
    options: dict[str, Any] = {option.removesuffix("_datetime"): due, "task_id": f"due-by-{option}"}
    task_id = processor.enqueue_task_sync("note", **options).id
    assert processor.get_task_status_sync(task_id).status in {"PENDING", "SUCCESS"}
    assert result_of(processor, task_id).status == "SUCCESS"
    assert ran[0] >= begin_s + 1


def test_cancelled_task_does_not_start(processors: Processors) -> None:
    ran: list[str] = []
    sender = processors.make()
    waiting = sender.enqueue_task_sync("run", ["waiting"]).id
    timed = sender.enqueue_task_sync("run", ["timed"], countdown=1).id
    other = sender.enqueue_task_sync("run", ["other"]).id
    for each in (waiting, timed):
        sender.cancel_task_sync(each)
        sender.cancel_task_sync(each)  # again: no effect

    processor = processors.make(add)
    processor.register_task_handle(ran.append, "run")
    assert result_of(processor, other).status == "SUCCESS"
    last = processor.enqueue_task_sync("run", ["last"], countdown=2).id
    assert result_of(processor, last).status == "SUCCESS"
    assert [result_of(processor, each).status for each in (waiting, timed)] == ["REVOKED", "REVOKED"]
    assert ran == ["other", "last"]
    assert processor.get_metrics_sync()["replica"]["skipped"] == 1  # the timed one is recalled


def test_result_of_a_task_cancelled_while_it_runs_is_ignored(processors: Processors) -> None:
    started, released = threading.Event(), threading.Event()

    def wait() -> str:
        started.set()
        released.wait(LIMIT_S)
        return "too late"

    processor = processors.make(wait)
    task_id = processor.enqueue_task_sync("wait").id
    assert started.wait(LIMIT_S)
    processor.cancel_task_sync(task_id)
    released.set()
    eventually(lambda: processor.get_metrics_sync()["replica"]["running"] == 0)
    assert processor.get_task_status_sync(task_id).status == "REVOKED"


def test_running_coroutine_is_cancelled(processors: Processors) -> None:
    events: list[str] = []

    async def wait() -> None:
        events.append("started")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    processor = processors.make(wait, invisible_ms=1_000)
    task_id = processor.enqueue_task_sync("wait").id
    eventually(lambda: events == ["started"])
    processor.cancel_task_sync(task_id)
    eventually(lambda: events == ["started", "cancelled"])
    eventually(lambda: processor.get_metrics_sync()["replica"]["running"] == 0)
    assert processor.get_task_status_sync(task_id).status == "REVOKED"


@pytest.mark.slow
def test_claim_is_renewed_while_its_handler_runs(processors: Processors) -> None:
    calls: list[int] = []
    released = threading.Event()

    def slow() -> int:
        calls.append(1)
        released.wait(LIMIT_S)
        return len(calls)

    processor = processors.make(slow, invisible_ms=1_000)
    other = processors.make(slow, invisible_ms=1_000)
    timer = processor.enqueue_task_sync("add", [1], countdown=4).id
    task_id = processor.enqueue_task_sync("slow").id
    result_of(other, timer)  # four times the invisible time
    released.set()
    assert result_of(processor, task_id).result == 1


def test_hanging_handler_is_taken_over(processors: Processors) -> None:
    released = threading.Event()

    def hang_once(calls: list[int] = []) -> int:  # noqa: B006 - counts
        calls.append(1)
        if len(calls) == 1:
            released.wait(LIMIT_S)
        return len(calls)

    processor = processors.make(hang_once, concurrency=1, max_run_ms=500)
    first = processor.enqueue_task_sync("hang_once").id
    assert result_of(processor, first).result == 2
    released.set()


def test_replica_without_free_threads_reports_it(processors: Processors) -> None:
    released = threading.Event()

    def hang() -> None:
        released.wait(LIMIT_S)

    processor = processors.make(hang, concurrency=1, max_run_ms=1, max_retries=0)
    for _ in range(2):
        processor.enqueue_task_sync("hang")

    def error() -> Any:
        return processor.health_check_sync()[0]["this replica"]["error"]

    assert "2 handlers overran" in eventually(error)
    released.set()
    eventually(lambda: error() is None)


def test_stop_finishes_running_tasks_and_returns_the_others(processors: Processors) -> None:
    started, released = threading.Semaphore(0), threading.Event()

    def wait(name: str) -> str:
        started.release()
        if name == "long":
            released.wait(LIMIT_S)
        return name

    stopping = processors.make(wait, invisible_ms=int(NEVER_S * 1_000))
    short = stopping.enqueue_task_sync("wait", ["short"]).id
    long = stopping.enqueue_task_sync("wait", ["long"]).id
    for _ in range(2):
        assert started.acquire(timeout=LIMIT_S)
    stopping.stop_consumer(timeout=1)
    assert stopping.get_task_status_sync(short).status == "SUCCESS"
    assert stopping.get_task_status_sync(long).status == "PENDING"

    released.set()
    other = processors.make(lambda name: f"{name} again")
    other.register_task_handle(lambda name: f"{name} again", "wait")
    assert result_of(other, long).result == "long again"


def test_task_of_a_stopped_broker_waits_for_it(clusters: Callable[..., Cluster]) -> None:
    cluster = clusters()
    made = Processors(cluster.address)
    processor = made.make(add)
    ids = [processor.enqueue_task_sync("add", [number]).id for number in range(20)]
    cluster.stop_broker("a")
    ids += [processor.enqueue_task_sync("add", [number]).id for number in range(20)]
    cluster.start_broker("a")
    assert [result_of(processor, each).status for each in ids] == ["SUCCESS"] * 40
    made.stop()


def test_figures_and_health_are_those_of_the_queue(processors: Processors) -> None:
    sender = processors.make()
    assert sender.get_task_status_sync("no-such-task").status == "UNKNOWN"
    assert sender.get_metrics_sync() == {"waiting": 0, "running": 0, "oldest_waiting_s": None}
    for _ in range(3):
        sender.enqueue_task_sync("add", [1])
    figures = sender.get_metrics_sync()
    assert figures["waiting"] == 3
    assert figures["oldest_waiting_s"] >= 0
    assert sender.health_check_sync() == []

    processor = processors.make(add)
    eventually(lambda: processor.get_metrics_sync()["replica"].get("succeeded") == 3)
    assert processor.get_metrics_sync()["waiting"] == 0
    this, online = processor.health_check_sync()
    assert this == {"this replica": {"ok": True, "error": None}}
    assert list(online.values()) == [{"ok": True}]


def test_age_is_that_of_the_oldest_waiting_task(processors: Processors) -> None:
    processor = processors.make(add)
    result_of(processor, processor.enqueue_task_sync("add", [1]).id)
    eventually(lambda: processor.get_metrics_sync()["running"] == 0)
    processor.stop_consumer()
    begin_s = time.time() - 0.001  # brokers count milliseconds
    processor.enqueue_task_sync("add", [2])
    age_s = processor.get_metrics_sync()["oldest_waiting_s"]
    assert 0 <= age_s <= time.time() - begin_s


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"task_id": "two words"}, "without spaces"),
        ({"task_id": ""}, "without spaces"),
        ({"countdown": 1, "eta": 2}, "give one of them"),
        ({"countdown": "soon"}, "give seconds"),
        ({"eta": float("nan")}, "give seconds"),
        ({"group_key": "user-7"}, "ordered=True"),
    ],
)
def test_invalid_options_are_refused(processors: Processors, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionInvalid, match=text):
        processors.make().enqueue_task_sync("add", **options)


def test_wrong_adapter_config_is_refused() -> None:
    config = TaskProcessorConfig(queue_name="tasks", adapter_config=7)
    with pytest.raises(OptionInvalid, match="give a RayMQAdapterConfig"):
        RayMQTaskProcessor(config)
