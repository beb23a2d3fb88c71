"""Views of groups, offsets, dead letters and rates, without the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from cluster.client import Admin, MessageQueue, Producer, PushConfig, PushConsumer, reconsume_later
from cluster.views import clients, dead_letters, groups, offsets
from cluster.views.brokers import list_brokers, load_of
from cluster.views.samples import ClusterState, take_sample
from cluster.views.top import group_rates, topic_rates
from store.common.clock import SystemClock
from tests.cluster.client.conftest import Cluster
from tests.conftest import ClockAtRest
from tests.eventually import eventually

DEAD = PushConfig(retry="broker", sync_interval_ms=100, commit_interval_ms=50)
A_SECOND_MS = 1_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("views"), brokers=1)
    yield made
    made.stop()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.address) as opened:
        yield opened


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Return a topic with three messages in its only queue."""
    name = cluster.topic(queues=1)
    with Producer(cluster.address, group="views") as producer:
        for number in range(3):
            producer.send(name, f"{number}")
    return name


def test_offset_view_previews_a_reset_and_a_clone(admin: Admin, topic: str) -> None:
    queue, group = MessageQueue(topic, "a", 0), f"of-{topic}"
    admin.commit_offsets(group, {queue: 1})
    [progress] = offsets.progress(admin, group, topic)
    assert asdict(progress) | {"last_ms": 0} == {
        "topic": topic, "broker": "a", "queue": 0, "committed": 1, "end": 3, "lag": 2, "in_flight": 0,
        "last_ms": 0,
    }  # fmt: skip
    for position, offset in (("earliest", 0), ("latest", 3), (0, 0)):
        targets = offsets.offsets_at(admin, topic, position)
        assert offsets.preview(admin, group, targets) == [offsets.OffsetChange(topic, "a", 0, 1, offset)]
    cloned = offsets.preview_clone(admin, group, "another", topic)
    assert cloned == [offsets.OffsetChange(topic, "a", 0, None, 1)]
    assert admin.committed_offsets(group, topic) == {queue: 1}


def test_group_view_shows_progress_and_omits_system_groups(admin: Admin, topic: str) -> None:
    group = f"of-{topic}"
    assert groups.describe_group(admin, group) is None
    admin.commit_offsets(group, {MessageQueue(topic, "a", 0): 1})
    found = groups.describe_group(admin, group)
    assert found is not None
    assert (found.lag, found.retries, found.dead_letters, found.members) == (2, 0, 0, [])
    assert found.settings["groupName"] == group
    listed = {each.group: each for each in groups.list_groups(admin)}
    assert (listed[group].topics, listed[group].lag) == ([topic], 2)
    assert "TOOLS_CONSUMER" not in listed
    assert "TOOLS_CONSUMER" in {each.group for each in groups.list_groups(admin, include_system=True)}


def test_dead_letter_view_selects_by_place_and_id(cluster: Cluster, admin: Admin, topic: str) -> None:
    group = f"of-{topic}"
    with PushConsumer(cluster.address, group, lambda _messages: reconsume_later(-1), config=DEAD) as consumer:
        consumer.subscribe(topic)
        eventually(lambda: dead_letters.DeadLetterCount(group, 3) in dead_letters.dead_letter_counts(admin))
        [member] = groups.members_of(admin, group)
        assert [member.client_id] == admin.group_members(group)
        [owned] = [each for each in clients.queue_owners(admin, group) if each.topic == topic]
        assert (owned.broker, owned.queue, owned.owner) == ("a", 0, member.client_id)
        assert owned.generation is not None
    letters = dead_letters.dead_letters(admin, group, 10)
    assert sorted((each.message.body, each.origin) for each in letters) == [
        (body, topic) for body in (b"0", b"1", b"2")
    ]
    second = letters[1]
    queue = MessageQueue(second.message.topic, "a", 0)
    assert dead_letters.dead_letter_at(admin, queue, second.message.queue_offset) == [second]
    assert dead_letters.dead_letters_with_id(admin, group, second.message.uniq_key or "") == [second]
    assert second.to_json()["origin"] == topic


def test_rates_of_a_snapshot_are_those_since_the_one_before(
    cluster: Cluster, admin: Admin, topic: str, clock: ClockAtRest
) -> None:
    queue, group = MessageQueue(topic, "a", 0), f"of-{topic}"
    admin.commit_offsets(group, {queue: 1})
    before = take_sample(admin, clock, ClusterState())
    with Producer(cluster.address, group="views") as producer:
        for _ in range(6):
            producer.send(topic, "more")
    admin.commit_offsets(group, {queue: 5})
    clock.advance(2 * A_SECOND_MS)
    now = take_sample(admin, clock, before)
    assert next(row for row in topic_rates(now, now.at_ms) if row.topic == topic).put_tps == 3
    rate = next(row for row in group_rates(now, {}) if row.group == group)
    assert (rate.topic, rate.tps, rate.lag) == (topic, 2, 4)
    assert [each.broker for each in now.brokers or ()] == ["a"]


def test_broker_view_has_no_counts_that_a_broker_does_not_report(admin: Admin) -> None:
    [broker] = list_brokers(admin, SystemClock())
    assert broker.load is not None
    assert 0 <= broker.load.disk_used <= 1
    assert broker.load.pending_timers == 0
    rocketmq = load_of({"putTps": "2.5 1.0 0.5", "bootTimestamp": "1000"}, 4_500)
    assert (rocketmq.put_tps, rocketmq.up_s, rocketmq.pending_timers) == (2.5, 3, None)
