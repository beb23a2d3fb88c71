"""The table of lite topics against a dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.kernels import lite as k
from store.lite.lite_table import LiteTable

NAMES = st.sampled_from(["a", "ab", "b", "a" * 63, "a" * 64, "-_9", *(f"n{number}" for number in range(8))])


@given(st.lists(st.tuples(st.sampled_from("TU"), NAMES, st.integers(0, 3))))
def test_table_has_the_names_that_were_entered_and_not_removed(
    steps: list[tuple[str, str, int]],
) -> None:
    table, ids = LiteTable(), dict[tuple[str, str], int]()
    for topic, name, action in steps:
        known = ids.get((topic, name), -1)
        assert table.find(topic, name) == known
        if action == 0 and known >= 0:
            table.remove(ids.pop((topic, name)))
        elif action == 1:
            table.grow()
        else:
            ids[topic, name] = table.enter(topic, name)
            assert known in (-1, ids[topic, name])
    assert len(table) == len(ids) == len(set(ids.values()))
    assert {key: table.find(*key) for key in ids} == ids
    assert {table.topic_and_name(id_): id_ for id_ in ids.values()} == ids


def test_table_grows_with_its_names_and_keeps_their_numbers() -> None:
    table = LiteTable()
    for number in range(5000):
        id_ = table.enter("T", f"name-{number}")
        table.numbers[id_, k.NEXT] = number + 1
        if number % 3 == 0:
            table.remove(id_)
    kept = [number for number in range(5000) if number % 3]
    assert sorted(table.names("T")) == sorted(f"name-{number}" for number in kept)
    assert [table.numbers.item(table.find("T", f"name-{number}"), k.NEXT) - 1 for number in kept] == kept
    assert len(table.parents) < 4000


def test_removed_names_leave_room_for_others() -> None:
    table = LiteTable()
    for number in range(20_000):
        table.remove(table.enter("T", f"name-{number}"))
    assert (len(table), len(table.parents), len(table.arrays[4])) == (0, 1, 1024)


def test_names_that_no_lite_topic_can_have_are_unknown() -> None:
    table = LiteTable()
    table.enter("T", "a")
    assert [table.find("T", name) for name in ("", "x" * 65, "ä")] == [-1, -1, -1]
    assert table.find("Other", "a") == -1
