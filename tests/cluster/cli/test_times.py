"""A time in seconds or microseconds is refused everywhere, with the date that was understood."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cluster.client import Admin, ConsumerConfig, Message, MessageQueue, Producer, PullConsumer
from cluster.client.errors import ClientError
from jobs.job_errors import OffsetsInvalid
from jobs.reading.times import parse_times
from store.plausible_time import date_of, implausible
from tests.cluster.cli.conftest import Raymq

SECONDS = 1_764_344_566
MICROSECONDS = SECONDS * 1_000_000
COMMANDS = [
    ("offset", "reset", "{group}", "{topic}", "--to", "{time}", "--dry-run"),
    ("group", "reset", "{group}", "{topic}", "--to", "{time}", "--dry-run"),
    ("tail", "{topic}", "--no-follow", "--from", "{time}"),
    ("message", "query", "{topic}", "--key", "k", "--from", "{time}"),
    ("message", "query", "{topic}", "--key", "k", "--until", "{time}"),
    ("dlq", "purge", "{group}", "--until", "{time}", "--dry-run"),
]
UNDERSTOOD = {SECONDS: "1970-01-21 10:05:44 UTC", MICROSECONDS: "a date in the year "}


@pytest.mark.parametrize("given", [SECONDS, MICROSECONDS])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command_refuses_a_time_in_another_unit(raymq: Raymq, command: tuple[str, ...], given: int) -> None:
    topic, group = raymq.filled(1), "of-times"
    raymq.ok("group", "create", group)
    arguments = [each.format(topic=topic, group=group, time=given) for each in command]
    error = raymq.refused(*arguments, code=2)
    assert UNDERSTOOD[given] in error
    assert "give milliseconds" in error
    assert str(SECONDS * 1000) in error


@pytest.mark.parametrize("given", [SECONDS, MICROSECONDS])
def test_program_is_refused_a_time_in_another_unit(raymq: Raymq, given: int) -> None:
    topic, group = raymq.filled(1), "of-times"
    address = raymq.cluster.address
    raymq.ok("group", "create", group)
    with Admin(address) as admin, Producer(address) as producer, PullConsumer(address, group) as consumer:
        queue = MessageQueue(topic, "a", 0)
        consumer.assign([queue])
        calls: list[Callable[[], object]] = [
            lambda: consumer.seek_to_time(given),
            lambda: admin.offsets_at(topic, given),
            lambda: admin.offsets_for_times({queue: given}),
            lambda: admin.reset_offsets(group, topic, given, dry_run=True),
            lambda: ConsumerConfig(address, group, consume_from="timestamp", consume_timestamp_ms=given),
            lambda: producer.send(Message(topic, b"x", deliver_at_ms=given)),
            lambda: parse_times("starting", given, None),
            lambda: parse_times("ending", str(given), None),
            lambda: parse_times("ending", None, {topic: {"a": {"0": given}}}),
        ]
        for call in calls:
            with pytest.raises((ClientError, OffsetsInvalid), match=UNDERSTOOD[given]):
                call()
        assert set(admin.offsets_at(topic, 0).values()) == {0}  # 0 is the beginning


def test_preview_of_a_reset_shows_the_date(raymq: Raymq) -> None:
    topic, group = raymq.filled(1), "of-dates"
    raymq.ok("group", "create", group)
    at_ms = time.time_ns() // 1_000_000 - 60_000
    for flag in ("--dry-run", "--yes"):
        rows = raymq.ok("offset", "reset", group, topic, "--to", str(at_ms), flag)
        assert {row["time"] for row in rows} == {date_of(at_ms)}
    assert date_of(at_ms) in raymq.shown("offset", "reset", group, topic, "--to", str(at_ms), "--dry-run")


def test_times_between_2000_and_tomorrow_are_plausible() -> None:
    now_ms, a_day_ms = 1_764_344_566_000, 86_400_000
    for time_ms in (946_684_800_000, now_ms, now_ms + a_day_ms):
        assert implausible(time_ms, now_ms) is None
    for time_ms in (0, 946_684_799_999, now_ms + a_day_ms + 1, 10**30):
        assert implausible(time_ms, now_ms) is not None
