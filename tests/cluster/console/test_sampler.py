"""Samples: rates between two looks, the history, and warnings in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from actors.wire.bodies.progress import OffsetWrapper
from cluster.client import Admin, MessageQueue, Producer
from cluster.client.errors import BrokerUnreachable, NotSupported
from cluster.console import sampler as sampler_module
from cluster.console.history import HOUR_POINTS, History
from cluster.console.sampler import FOLLOWED, Sampler, figures
from cluster.views.brokers import BrokerLoad, BrokerView
from cluster.views.samples import STALE_MS, ClusterState, GroupSample, TopicLag
from cluster.views.top import topic_rates
from cluster.views.warnings import notices
from tests.cluster.client.conftest import Cluster
from tests.conftest import ClockAtRest


def test_rates_are_those_between_two_samples(cluster: Cluster, admin: Admin, clock: ClockAtRest) -> None:
    topic = cluster.topic(queues=1)
    queue = MessageQueue(topic, "a", 0)
    admin.commit_offsets(topic, {queue: 0})
    sampler = Sampler(admin, clock)
    clock.advance(1_000)
    sampler.look()
    assert sampler.last.groups is not None
    assert sampler.last.groups[topic].tps is None
    with Producer(cluster.address, group="sampler") as producer:
        for _ in range(6):
            producer.send(topic, "x", queue=queue)
    admin.commit_offsets(topic, {queue: 4})
    clock.advance(2_000)
    sampler.look()
    sample = sampler.last
    assert sample.groups is not None
    assert (sample.topics[topic].tps, sample.topics[topic].messages) == (3, 6)
    assert (sample.groups[topic].tps, sample.groups[topic].lag) == (2, 2)
    curves = sampler.curves_of_group(topic)
    assert curves is not None
    assert curves.values == [[0, 2], [None, 2]]


def test_each_sample_has_the_counters_of_all_topics(
    cluster: Cluster, admin: Admin, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request for each broker, however many topics there are; RocketMQ's brokers need one per topic."""
    topics = [cluster.topic(queues=2) for _ in range(4)]
    monkeypatch.setattr(sampler_module, "TOPICS_PER_SAMPLE", 1)
    sampler = Sampler(admin, clock)
    with Producer(cluster.address, group="sampler") as producer:
        for _ in range(2):
            clock.advance(20_000)
            for topic in topics:
                for broker in "ab":
                    producer.send(topic, "x", queue=MessageQueue(topic, broker, 1))
            sampler.look()
    found = sampler.last.topics
    assert [found[topic].messages for topic in topics] == [4] * 4
    assert [found[topic].tps for topic in topics] == [2 / 20] * 4
    assert [found[topic].stale_ms(sampler.last.at_ms) for topic in topics] == [None] * 4
    monkeypatch.setattr(admin, "topic_counters", failing(NotSupported(3, "unknown code")))
    sampler = Sampler(admin, clock)
    sampler.look()
    assert len(sampler.last.topics) == 1


def test_topics_of_a_broker_that_does_not_respond_show_their_age(
    cluster: Cluster, admin: Admin, clock: ClockAtRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = cluster.topic(queues=1)
    admin.create_topic("only-on-a", queues=1, brokers=["a"])
    sampler, counters = Sampler(admin, clock), admin.topic_counters
    sampler.look()
    refuse = failing(BrokerUnreachable("b does not respond"))
    monkeypatch.setattr(admin, "topic_counters", lambda name: counters(name) if name == "a" else refuse(name))
    clock.advance(STALE_MS + 1)
    sampler.look()
    ages_ms = {name: each.stale_ms(clock.wall_ms()) for name, each in sampler.last.topics.items()}
    assert (ages_ms[both], ages_ms["only-on-a"]) == (STALE_MS + 1, None)
    rows = {row.topic: row.stale_ms for row in topic_rates(sampler.last, clock.wall_ms())}
    assert (rows[both], rows["only-on-a"]) == (STALE_MS + 1, None)
    sampler = Sampler(admin, clock)
    sampler.look()  # b has never responded: its topics are requested one by one
    assert sampler.last.topics[both].stale_ms(clock.wall_ms()) is None


def failing(error: Exception) -> Callable[[str], Any]:
    def fail(broker: str) -> Any:
        raise error

    return fail


def test_history_keeps_an_hour_of_samples_and_a_day_of_minutes() -> None:
    history = History(1)
    for number in range(HOUR_POINTS + 60):
        history.add(number * 5_000, number)
    hour, day = history.curves("hour"), history.curves("day")
    assert (len(hour.times_ms), hour.times_ms[0], hour.values[0][0]) == (HOUR_POINTS, 300_000, 60)
    assert day.times_ms[:3] == [0, 60_000, 120_000]
    assert History(2).curves() == History(2).curves("day")


def load(**values: float) -> BrokerLoad:
    given = {"disk_used": 0.2, "dead_letters": 0, **values}
    return BrokerLoad("V5", 0.0, 0.0, given["disk_used"], 0, 0, 0, int(given["dead_letters"]), 9)


def broker(name: str, of: BrokerLoad | None) -> BrokerView:
    return BrokerView("c", name, 0, "127.0.0.1:1", of)


@pytest.mark.parametrize(
    ("sample", "texts"),
    [
        (ClusterState(), []),
        (ClusterState(at_ms=1, brokers=[broker("a", load())], groups={}), []),
        (ClusterState(at_ms=1, problems=["a does not respond: refused"]), ["a does not respond: refused"]),
        (
            ClusterState(at_ms=1, brokers=[broker("a", load(disk_used=0.8))]),
            ["the disk of a is 80% full: it will delete old files early"],
        ),
        (
            ClusterState(
                at_ms=1, brokers=[broker("a", load(dead_letters=2)), broker("b", load(dead_letters=3))]
            ),
            ["5 dead letters to be resent or purged"],
        ),
        (
            ClusterState(
                at_ms=1, brokers=[broker("a", replace(load(), raft_voters=3, raft_active_voters=3))]
            ),
            [],
        ),
        (
            ClusterState(
                at_ms=1, brokers=[broker("a", replace(load(), raft_voters=3, raft_active_voters=2))]
            ),
            ["a runs on a bare majority, 2 of 3 replicas: it does not survive the loss of another"],
        ),
        (
            ClusterState(at_ms=1, groups={"g": GroupSample({"t": TopicLag(7, 0, 1)}, 100_000)}),
            ["g is 15 min behind on t: 7 messages"],
        ),
        (ClusterState(at_ms=1, groups={"g": GroupSample({"t": TopicLag(7, 0, 1)}, 990_000)}), []),
        (ClusterState(at_ms=1, groups={"g": GroupSample({"t": TopicLag(0, 0, 1)}, None)}), []),
    ],
)
def test_warnings_say_what_is_wrong_in_words(sample: ClusterState, texts: list[str]) -> None:
    assert [each.text for each in notices(sample, 1_000_000)] == texts


def test_number_of_histories_is_bounded(admin: Admin, clock: ClockAtRest) -> None:
    names = [f"bounded-{number:03}" for number in range(FOLLOWED.limit + 5)]
    for name in names:
        admin.commit_offsets(name, {MessageQueue("TBW102", "a", 0): 0})
    sampler = Sampler(admin, clock)
    sampler.look()
    assert sum(sampler.curves_of_group(name) is not None for name in names) <= FOLLOWED.limit
    assert [each.read() for each in sampler.bounds()] == [FOLLOWED.limit]


def test_messages_in_flight_are_unknown_where_no_offset_of_a_pull_is_reported() -> None:
    """RocketMQ's list of all groups has the offsets of commits only."""
    committed, pulled = OffsetWrapper(9, 5, 0), OffsetWrapper(9, 5, 7)
    assert (pulled.in_flight, committed.in_flight) == (2, None)
    topics = {"t": TopicLag(4, pulled.in_flight, 5), "u": TopicLag(4, committed.in_flight, 5)}
    groups = {"g": GroupSample(topics, None)}
    assert figures(ClusterState(at_ms=1, groups=groups))[2:4] == (8, None)
