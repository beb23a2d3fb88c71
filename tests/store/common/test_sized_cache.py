"""SizedCache: which entries it keeps."""

from __future__ import annotations

from store.common.sized_cache import SizedCache


def test_entries_used_last_are_kept_within_the_limit() -> None:
    cache = SizedCache[str, int](100)
    for number, key in enumerate("abcd"):
        cache.put(key, number, 25)
    assert cache.get("a") == 0
    cache.put("e", 4, 30)
    assert [key in cache for key in "abcde"] == [True, False, False, True, True]
    assert (cache.get("b"), cache.size_bytes) == (None, 80)


def test_replaced_entry_counts_once_and_too_large_entry_is_not_kept() -> None:
    cache = SizedCache[str, int](100)
    cache.put("a", 1, 60)
    cache.put("a", 2, 60)
    assert (cache.get("a"), cache.size_bytes) == (2, 60)
    cache.put("b", 3, 101)
    assert (cache.get("b"), cache.get("a"), cache.size_bytes) == (None, 2, 60)
