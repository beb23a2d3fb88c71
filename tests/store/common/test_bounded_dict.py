"""BoundedDict: which entries it keeps."""

from __future__ import annotations

from store.common.bounded_dict import BoundedDict


def test_bounded_dict_drops_what_was_added_first() -> None:
    dropped: list[tuple[str, int]] = []
    entries = BoundedDict[str, int](2, lambda key, value: dropped.append((key, value)))

    entries["a"] = 1
    entries["b"] = 2
    entries["a"] = 3  # no younger than before
    entries["c"] = 4

    assert list(entries.items()) == [("b", 2), ("c", 4)]
    assert dropped == [("a", 3)]


def test_bounded_dict_keeps_what_the_caller_used_last() -> None:
    entries = BoundedDict[str, int](2)

    entries["a"] = 1
    entries["b"] = 2
    entries.move_to_end("a")
    entries["c"] = 3

    assert list(entries) == ["a", "c"]


def test_bounded_dict_reports_no_entry_that_the_caller_removed() -> None:
    dropped: list[str] = []
    entries = BoundedDict[str, int](2, lambda key, _: dropped.append(key))

    entries["a"] = 1
    del entries["a"]
    entries["b"] = 2
    entries.pop("b")

    assert not dropped
