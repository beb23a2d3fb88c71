"""The limit of open files is raised if that is allowed; else connections are reduced with a warning."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest
import structlog

from actors.host.descriptors import connections_that_fit

Limits = tuple[int, int]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[Limits]]:
    """Return a function that fakes a soft and a hard limit, and returns the list of later changes."""

    def system(soft: int, hard: int) -> list[Limits]:
        was_set: list[Limits] = []
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
        monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: was_set.append(pair))
        return was_set

    return system


def test_sufficient_limit_is_not_changed(limits) -> None:
    was_set = limits(30_000, 30_000)
    assert connections_that_fit(20_000, 1_000) == 20_000
    assert was_set == []


def test_soft_limit_is_raised_as_needed(limits) -> None:
    was_set = limits(1_024, 1 << 20)
    assert connections_that_fit(20_000, 1_000) == 20_000
    assert was_set == [(21_000, 1 << 20)]


def test_hard_limit_reduces_connections_with_a_warning(limits) -> None:
    was_set = limits(1_024, 4_096)
    with structlog.testing.capture_logs() as logs:
        assert connections_that_fit(20_000, 1_000) == 3_096
    assert was_set == [(4_096, 4_096)]
    assert logs[0]["event"] == "max_connections_reduced"


def test_unlimited_descriptors_need_no_change(limits) -> None:
    was_set = limits(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert connections_that_fit(20_000, 1_000) == 20_000
    assert was_set == []
