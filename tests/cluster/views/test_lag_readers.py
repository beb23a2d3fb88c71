"""The lag of a group is the same for all that show it, also before the group has committed an offset."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.client import (
    Admin,
    MessageQueue,
    PopConsumer,
    Producer,
    PushConfig,
    PushConsumer,
    reconsume_later,
)
from cluster.control.drain import DrainProgress
from cluster.views.groups import describe_group, list_groups
from cluster.views.samples import ClusterState, take_sample
from cluster.views.top import group_rates
from store.common.clock import SystemClock
from tests.cluster.cli.conftest import Raymq
from tests.cluster.client.conftest import Cluster
from tests.eventually import LIMIT_S, NEVER_S, eventually

COUNT = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("lags"))
    yield made
    made.stop()


@dataclass
class Case:
    """One group and its topic; consumers are closed at the end."""

    cluster: Cluster
    topic: str
    group: str
    stack: ExitStack
    directory: str
    received: list[bytes] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def send(self, count: int = COUNT) -> None:
        with Producer(self.cluster.address) as producer:
            for number in range(count):
                producer.send(self.topic, f"{number}")

    def consumer(self, stuck: bool = True, **settings: object) -> PushConsumer:
        """Start a consumer whose listener does not return until the end of the case."""

        def listen(messages: object, *_: object) -> object:
            self.received.append(b"")
            if stuck:
                self.is_over.wait(NEVER_S)
            return reconsume_later(1) if settings.get("retry") else None

        config = PushConfig(sync_interval_ms=100, commit_interval_ms=50, close_timeout_ms=100, **settings)  # type: ignore[arg-type]
        consumer = PushConsumer(self.cluster.address, self.group, listen, config=config)  # type: ignore[arg-type]
        consumer.subscribe(self.topic)
        return consumer.start()


def never_committed(case: Case) -> int | None:
    case.send()
    case.stack.enter_context(case.consumer())
    eventually(lambda: case.received)
    return COUNT


def committed_on_one_broker_only(case: Case) -> int | None:
    case.send()
    with Admin(case.cluster.address) as admin:
        queue = MessageQueue(case.topic, "a", 0)
        admin.commit_offsets(case.group, {queue: 1})
    case.stack.enter_context(case.consumer())
    eventually(lambda: case.received)
    return COUNT - 1


def stuck_since_it_started_at_the_end(case: Case) -> int | None:
    case.send()
    consumer = case.stack.enter_context(case.consumer(consume_from="latest"))
    with Admin(case.cluster.address) as admin:
        eventually(lambda: len(consumer.assignment()) == 4)
        eventually(lambda: len(started(case)) == 4)
        assert admin.group_stats(case.group).lag == 0
    case.send(9)
    eventually(lambda: case.received)
    return 9


def started(case: Case) -> list[int]:
    found = [
        broker.graph.tables.offsets.started(case.group, case.topic, queue)
        for broker in case.cluster.brokers.values()
        for queue in range(2)
    ]
    return [each for each in found if each is not None]


def offline(case: Case) -> int | None:
    never_committed(case)
    case.stack.close()
    return COUNT


def broadcasting(case: Case) -> int | None:
    case.send()
    settings = {
        "message_model": "broadcasting",
        "consume_from": "earliest",
        "local_offset_dir": case.directory,
    }
    case.stack.enter_context(case.consumer(**settings))
    eventually(lambda: case.received)
    return None


def popped(case: Case) -> int | None:
    case.send()
    worker = case.stack.enter_context(PopConsumer(case.cluster.address, case.group))
    assert worker.receive(case.topic, max_messages=8, timeout_ms=int(LIMIT_S * 1000))
    return COUNT


def retried(case: Case) -> int | None:
    case.send(1)
    with Admin(case.cluster.address) as admin, case.consumer(stuck=False, retry="broker") as consumer:
        eventually(lambda: admin.group_stats(case.group).lag == 0 and case.received)
        consumer.close()
        eventually(
            lambda: any(
                each.max_offset for each in admin.topic_stats(f"%RETRY%{case.group}").offsets.values()
            )
        )
    return 1


def deleted_topic(case: Case) -> int | None:
    case.send()
    with Admin(case.cluster.address) as admin:
        admin.commit_offsets(case.group, {MessageQueue(case.topic, "a", 0): 1})
        admin.delete_topic(case.topic)
    return None


def unknown(case: Case) -> int | None:
    """No member was ever online and nothing was committed: no broker knows a topic of the group."""
    case.send()
    Raymq(case.cluster).ok("group", "create", case.group)
    return None


CASES = [
    never_committed, committed_on_one_broker_only, stuck_since_it_started_at_the_end, offline, broadcasting,
    popped, retried, deleted_topic, unknown,
]  # fmt: skip


@pytest.mark.parametrize("prepare", CASES)
def test_all_readers_show_the_same_lag(
    cluster: Cluster, prepare: Callable[[Case], int | None], tmp_path: Path
) -> None:
    name = prepare.__name__
    with ExitStack() as stack, Admin(cluster.address) as admin:
        case = Case(cluster, cluster.topic(queues=2), f"lag-{name}", stack, str(tmp_path))
        stack.callback(case.is_over.set)
        expected = prepare(case)
        readers: dict[str, Callable[[], int | None]] = {
            "describe": lambda: described(admin, case.group),
            "command": lambda: Raymq(cluster).ok("group", "describe", case.group)["lag"],
            "list": lambda: {each.group: each.lag for each in list_groups(admin)}[case.group],
            "console": lambda: sampled(admin, case.group),
            "top": lambda: top(admin, case.group),
            "metrics": lambda: scraped(cluster, case.group),
        }
        for reader, read in readers.items():
            eventually(lambda read=read: read() == expected, f"{name}, {reader}, {expected}: {read()}")  # type: ignore[misc]
        behind = {each.group: each.behind_since_ms for each in list_groups(admin)}[case.group]
        assert (behind is not None) == bool(expected and prepare is not retried)  # retries wait on purpose
        assert unread(cluster, case.group) == (expected or 0)
        case.is_over.set()


def described(admin: Admin, group: str) -> int | None:
    found = describe_group(admin, group)
    assert found is not None
    return found.lag


def sampled(admin: Admin, group: str) -> int | None:
    groups = take_sample(admin, SystemClock(), ClusterState(), 1).groups
    assert groups is not None
    return groups[group].lag if group in groups else None


def top(admin: Admin, group: str) -> int | None:
    rows = [
        each.lag
        for each in group_rates(take_sample(admin, SystemClock(), ClusterState(), 1), {})
        if each.group == group
    ]
    known = [each for each in rows if each is not None]
    return sum(known) if rows and len(known) == len(rows) else None


def scraped(cluster: Cluster, group: str) -> int | None:
    """Return the sum of the metric over all brokers and topics; None if there is no sample."""

    async def read() -> list[int]:
        values = []
        for broker in cluster.brokers.values():
            figure = next(
                each for each in broker.graph.figures if each.metric == "rocketmq_consumer_lag_messages"
            )
            assert figure.refresh is not None
            await figure.refresh()
            values += [int(str(each.value)) for each in figure.samples() if each.labels[1] == group]
        return values

    found = cluster.run(read())
    return sum(found) if found else None


def unread(cluster: Cluster, group: str) -> int:
    """Return the unread messages in the progress of the drains, which the autoscaler reads."""

    async def read() -> list[DrainProgress]:
        return [DrainProgress.of(await each.graph.drain.progress()) for each in cluster.brokers.values()]

    return sum(each.unread for found in cluster.run(read()) for each in found.groups if each.group == group)
