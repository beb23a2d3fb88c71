"""The lite index: reading, restarts, rebuilds, new lives, deleted files and foreign records."""

from __future__ import annotations

from typing import Any

import pytest

from store.message.lite_topics import consistent_hash, is_valid_name, lite_topic_queue
from store.tools.rebuild import rebuild
from store.tools.verify import verify
from tests.store.checkpoints import make_checkpoint


def numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def test_lite_topics_are_read_in_their_order(lite_stores: Any) -> None:
    lite = lite_stores()
    for number in range(50):
        lite.send("a", b"%d" % number)
        lite.send("b", b"other")
    lite.drain(lite.store)
    assert lite.bodies("a") == numbers(0, 50)
    assert lite.bodies("a", 7, 3) == numbers(7, 10)
    assert lite.bodies("a", 60) == lite.bodies("c") == []
    assert [each.offset for each in lite.index.read("LiteT", "a", 48, 9)] == [48, 49]
    assert (lite.index.min_offset("LiteT", "a"), lite.index.max_offset("LiteT", "a")) == (0, 50)
    assert (lite.index.min_offset("LiteT", "c"), lite.index.max_offset("LiteT", "c")) == (0, 0)
    assert list(lite.index.names("LiteT")) == ["a", "b"]
    assert list(lite.index.names("Lite")) == []
    lite.send("a", b"50")
    lite.drain(lite.store)
    assert lite.bodies("a", 48) == numbers(48, 51)


def test_offsets_count_messages_that_are_not_dispatched_yet(lite_stores: Any) -> None:
    lite = lite_stores()
    lite.send("a", b"0", b"1")
    assert lite.index.max_offset("LiteT", "a") == 0
    assert lite.index.next_offset("LiteT", "a") == 2
    lite.drain(lite.store)
    assert lite.index.max_offset("LiteT", "a") == 2
    lite.send("a", b"2")
    assert lite.index.next_offset("LiteT", "a") == 3


def test_arrivals_are_reported_when_messages_are_dispatched(lite_stores: Any) -> None:
    lite = lite_stores()
    arrived: list[tuple[str, str]] = []
    lite.index.arrived = arrived.extend
    lite.send("a", b"0")
    assert arrived == []
    lite.send("b", b"0")
    lite.drain(lite.store)
    assert arrived == [("LiteT", "a"), ("LiteT", "b")]


@pytest.mark.parametrize("ending", ["closed", "killed", "rebuilt", "without its state", "damaged"])
def test_index_is_the_same_after_a_restart(lite_stores: Any, stores: Any, ending: str) -> None:
    lite = lite_stores()
    lite.send("a", *numbers(0, 40))
    lite.send("b", b"x")
    lite.drain(lite.store)
    make_checkpoint(lite.store)
    lite.send("a", *numbers(40, 60))
    lite.send("c", b"y")
    lite.drain(lite.store)
    name = "store"
    if ending == "killed":
        stores.kill(lite.store, name := "killed")
    lite.store.close()
    root = stores.directory / name
    if ending == "rebuilt":
        rebuild(root)
    if ending == "without its state":
        (root / "sinks" / "lite").unlink()
    if ending == "damaged":
        [first, *_] = sorted((root / "lite" / "units").iterdir())
        first.write_bytes(first.read_bytes().replace(b"\x01", b"\x02"))
    lite = lite_stores(name)
    assert lite.bodies("a") == numbers(0, 60)
    assert (lite.bodies("b"), lite.bodies("c")) == ([b"x"], [b"y"])
    lite.send("a", b"60")
    lite.send("d", b"z")
    lite.drain(lite.store)
    assert lite.bodies("a", 59) == numbers(59, 61)
    assert lite.bodies("d") == [b"z"]
    lite.store.close()
    assert verify(root).findings == []


def test_dropped_lite_topic_begins_a_new_life(lite_stores: Any, stores: Any) -> None:
    lite = lite_stores()
    lite.send("a", b"old", b"older")
    lite.send("b", b"kept")
    lite.drain(lite.store)
    lite.index.drop("LiteT$a")
    assert (lite.bodies("a"), lite.index.max_offset("LiteT", "a")) == ([], 0)
    lite.send("c", b"takes the id")
    lite.send("a", b"new")
    lite.drain(lite.store)
    lite.index.drop("LiteT$b")
    assert (lite.bodies("a"), lite.bodies("b"), lite.bodies("c")) == ([b"new"], [], [b"takes the id"])
    for is_rebuilt in (False, True):
        lite.store.close()
        if is_rebuilt:
            rebuild(stores.directory / "store")
        lite = lite_stores()
        assert (lite.bodies("a"), lite.bodies("b"), lite.bodies("c")) == ([b"new"], [], [b"takes the id"])
        assert sorted(lite.index.names("LiteT")) == ["a", "c"]


def test_smaller_offset_begins_a_new_life(lite_stores: Any) -> None:
    lite = lite_stores()
    for offset, body in ((0, b"old"), (1, b"old"), (0, b"new"), (1, b"newer")):
        lite.put("a", offset, body)
    lite.drain(lite.store)
    assert lite.bodies("a") in ([], [b"new", b"newer"])
    assert lite.bodies("a") == [b"new", b"newer"]
    assert lite.index.max_offset("LiteT", "a") == 2


def test_lite_topic_expires_by_the_time_of_its_last_message(lite_stores: Any, clock: Any) -> None:
    lite = lite_stores()
    lite.send("a", b"0")
    lite.send("b", b"0")
    lite.send("x", b"0", topic="Other")
    lite.drain(lite.store)
    stored_ms = lite.index.last_store_time("LiteT", "a")
    assert lite.index.last_store_time("LiteT", "unknown") is None
    assert list(lite.index.expired({"LiteT": stored_ms})) == []
    assert list(lite.index.expired({"LiteT": stored_ms + 1_000})) == ["LiteT$a", "LiteT$b"]
    assert list(lite.index.expired({})) == []


def test_lite_topic_that_gets_a_message_during_the_sweep_does_not_expire(
    lite_stores: Any, clock: Any
) -> None:
    lite = lite_stores()
    for name in ("a", "b", "c"):
        lite.send(name, b"0")
    lite.drain(lite.store)
    clock.advance(10_000)
    expired = lite.index.expired({"LiteT": lite.index.last_store_time("LiteT", "a") + 1_000})
    assert next(expired) == "LiteT$a"
    lite.send("b", b"1")
    lite.drain(lite.store)
    assert list(expired) == ["LiteT$c"]


def test_lite_topic_with_undispatched_messages_is_not_dropped(lite_stores: Any) -> None:
    lite = lite_stores()
    lite.send("a", b"0")
    lite.drain(lite.store)
    lite.send("a", b"1")
    lite.index.drop("LiteT$a")
    lite.drain(lite.store)
    assert lite.bodies("a") == [b"0", b"1"]


def test_offsets_outlive_the_messages(lite_stores: Any, stores: Any) -> None:
    lite = lite_stores()
    lite.send("a", *numbers(0, 20))
    lite.send("b", *numbers(0, 40))
    lite.drain(lite.store)
    [kept] = lite.index.read("LiteT", "b", 30, 1)
    lite.index.saved(kept.physical_offset)  # as a checkpoint does after files of the log were deleted
    assert (lite.index.min_offset("LiteT", "a"), lite.index.max_offset("LiteT", "a")) == (20, 20)
    assert lite.index.min_offset("LiteT", "b") == 30
    assert lite.bodies("b") == numbers(30, 40)
    assert len(list((stores.directory / "store" / "lite" / "units").iterdir())) < 4
    make_checkpoint(lite.store)
    stores.kill(lite.store, "killed")
    lite = lite_stores("killed")
    assert lite.index.max_offset("LiteT", "a") == 20
    lite.send("a", b"20")
    lite.drain(lite.store)
    assert lite.bodies("a", 20) == [b"20"]


def test_truncated_messages_leave_the_index(lite_stores: Any) -> None:
    lite = lite_stores()
    lite.send("a", *numbers(0, 20))
    cut = lite.store.positions.written
    lite.send("a", *numbers(20, 40))
    lite.send("b", b"gone")
    lite.drain(lite.store)
    assert lite.bodies("a") == numbers(0, 40)
    lite.store.truncate_to(cut, discard_confirmed=True)
    assert (lite.bodies("a"), lite.bodies("b")) == (numbers(0, 20), [])
    lite.send("a", b"20")
    lite.send("b", b"again")
    lite.drain(lite.store)
    assert (lite.bodies("a", 19), lite.bodies("b")) == (numbers(19, 21), [b"again"])
    make_checkpoint(lite.store)
    lite.store.close()
    lite = lite_stores()
    assert (lite.bodies("a", 19), lite.bodies("b")) == (numbers(19, 21), [b"again"])


FOREIGN: dict[str, dict[str, Any]] = {
    "dead letter of RocketMQ": {"topic": "%DLQ%G", "parent": "LiteT", "offset": 0},
    "name with $": {"name": "a$b", "offset": 0},
    "several": {"name": "a,%LMQ%$LiteT$b", "offset": "0,0"},
    "no number": {"offset": "x"},
    "huge number": {"offset": 10**10},
}


@pytest.mark.parametrize("case", FOREIGN)
def test_record_that_is_no_lite_message_is_skipped(lite_stores: Any, case: str) -> None:
    lite = lite_stores()
    lite.send("a", b"0", b"1")
    lite.put(**{"name": "a", "body": b"foreign", **FOREIGN[case]})
    lite.send("a", b"2")
    lite.drain(lite.store)
    assert lite.bodies("a") == numbers(0, 3)
    assert list(lite.index.names("LiteT")) == ["a"]


def test_names_have_letters_digits_and_dashes() -> None:
    assert all(map(is_valid_name, ("a", "A-1_b", "x" * 64)))
    assert not any(map(is_valid_name, ("", "a$b", "a b", "a%b", "a.b", "x" * 65, "ä", "a\n")))


def test_lite_topics_have_the_queues_that_rocketmq_gives_them() -> None:
    """Values of Guava's tests."""
    numbers = (10863919174838991, 2016238256797177309, 1673758223894951030)
    assert [consistent_hash(each, 11) for each in numbers] == [6, 3, 5]
    assert [consistent_hash(each, 100_001) for each in (2, 2201, 2202)] == [80343, 22152, 15018]
    assert lite_topic_queue("zzzzzz", 8) == consistent_hash((1 << 64) - 685_785_664, 8)  # a negative hash


def test_store_of_rocketmq_with_lite_queues_is_opened_and_checked(lite_stores: Any, stores: Any) -> None:
    lite = lite_stores()
    lite.send("a", *numbers(0, 20))
    lite.drain(lite.store)
    lite.store.close()
    root = stores.directory / "store"
    (root / "sinks" / "lite").unlink()
    for path in sorted((root / "lite").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    queue = root / "consumequeue" / "%LMQ%$LiteT$a" / "0"
    queue.mkdir(parents=True)
    (queue / "00000000000000000000").write_bytes(bytes(6_000_000))
    lite = lite_stores()
    assert lite.bodies("a") == numbers(0, 20)
    lite.store.close()
    assert verify(root).findings == []
    rebuild(root)
    assert lite_stores().bodies("a") == numbers(0, 20)


def test_lite_messages_are_found_after_plain_ones_of_their_topic(lite_stores: Any, stores: Any) -> None:
    lite = lite_stores()
    for text in (b"plain", b"plain again"):
        lite.store.append(lite.draft(text, topic="LiteT"))
        lite.drain(lite.store)
    for number in range(3):  # as a replica gets them
        lite.put("a", number, b"%d" % number)
    lite.drain(lite.store)
    assert lite.bodies("a") == [b"0", b"1", b"2"]
    lite.store.close()
    (stores.directory / "store" / "sinks" / "lite").unlink()
    assert lite_stores().bodies("a") == [b"0", b"1", b"2"]
