"""The limit of open files is raised if possible; else fewer files are open, or the start is refused."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest
import structlog

from actors.host import descriptors
from actors.host.descriptors import reserve_descriptors
from actors.ports import OTHERS, RESERVED
from store.store_errors import StoreError

Limits = tuple[int, int]
OPEN = 72
OWN = OPEN + OTHERS + RESERVED  # 200


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[Limits]]:
    """Return a function that fakes a soft and a hard limit, and returns the list of later changes."""

    def system(soft: int, hard: int) -> list[Limits]:
        was_set: list[Limits] = []
        monkeypatch.setattr(descriptors, "open_descriptors", lambda: OPEN)
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: was_set.append(pair))
        return was_set

    return system


@pytest.mark.parametrize("limit", [30_000, resource.RLIM_INFINITY])
def test_sufficient_limit_is_not_changed(limits, limit: int) -> None:
    was_set = limits(limit, limit)
    assert reserve_descriptors(20_000, 512) == 512
    assert was_set == []


@pytest.mark.parametrize("hard", [1 << 20, resource.RLIM_INFINITY])
def test_soft_limit_is_raised_as_needed(limits, hard: int) -> None:
    was_set = limits(1_024, hard)
    assert reserve_descriptors(20_000, 512) == 512
    assert was_set == [(OWN + 3 * 512 + 20_000, hard)]


@pytest.mark.parametrize(("hard", "files"), [(4_096, 512), (1_024, 189), (512, 61), (400, 33), (360, 32)])
def test_hard_limit_reduces_files_so_that_clients_have_a_quarter(limits, hard: int, files: int) -> None:
    was_set = limits(256, hard)
    with structlog.testing.capture_logs() as logs:
        assert reserve_descriptors(20_000, 512) == files
    assert was_set == [(hard, hard)]
    assert logs[0]["event"] == "max_connections_reduced"
    left = hard - OWN - 3 * files
    assert logs[0]["effective"] == left
    assert left >= min(hard // 4, 64)


def test_process_whose_hard_limit_cannot_hold_its_files_is_refused(limits) -> None:
    was_set = limits(256, 359)
    with pytest.raises(StoreError, match="the hard limit of open files is 359; this process needs 360: 200 "):
        reserve_descriptors(20_000, 512)
    assert was_set == []
    limits(256, 264)
    assert reserve_descriptors(20_000) == 0
    limits(256, 263)
    with pytest.raises(StoreError, match=r"is 263; this process needs 264: .* Raise it"):
        reserve_descriptors(20_000)
