"""Judgement of histories whose keys move between queues."""

from __future__ import annotations

from benchmarks.experiments.history.events import Recorder
from benchmarks.experiments.history.judgement import Judgement, judge


def test_a_judgement_counts_failed_lost_and_duplicated_messages() -> None:
    history = Recorder()
    history.send("p", "T", "read").ok(0, 0)
    history.send("p", "T", "lost").ok(0, 1)
    history.send("p", "T", "refused").fail()
    history.send("p", "T", "unknown").info()
    for offset in (0, 7):
        history.read("c", "g", "T", 0, offset, "read")

    assert judge(history.events) == Judgement(sent=4, failed=2, lost=1, duplicated=1, out_of_order=0)


def test_a_key_read_from_its_new_queue_first_is_out_of_order() -> None:
    history = Recorder()
    history.send("p", "T", "one", key="k").ok(0, 5)
    history.send("p", "T", "two", key="k").ok(1, 0)
    history.send("p", "T", "other", key="l").ok(1, 1)
    history.read("c1", "g", "T", 1, 0, "two")
    history.read("c1", "g", "T", 1, 1, "other")
    history.read("c2", "g", "T", 0, 5, "one")
    history.read("c2", "g", "T", 0, 5, "one")

    assert judge(history.events).out_of_order == 1


def test_groups_and_concurrent_sends_of_a_key_are_judged_separately() -> None:
    history = Recorder()
    one, two = history.send("p", "T", "one", key="k"), history.send("q", "T", "two", key="k")
    one.ok(0, 5)
    two.ok(1, 0)
    history.send("p", "T", "three", key="k").ok(0, 6)
    history.read("c", "g", "T", 1, 0, "two")
    history.read("c", "g", "T", 0, 5, "one")
    history.read("d", "h", "T", 0, 6, "three")
    history.read("d", "h", "T", 0, 5, "one")
    history.read("c", "g", "T", 0, 6, "three")

    assert judge(history.events).out_of_order == 1
