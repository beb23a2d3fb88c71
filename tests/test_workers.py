"""Tests that share a cluster run in one worker: it is started once, and two of Ray's do not meet."""

from __future__ import annotations

import pytest

from tests.workers import group_of


@pytest.mark.parametrize("mark", ["ray", "java"])
def test_what_is_marked_alike_stays_together(request: pytest.FixtureRequest, mark: str) -> None:
    marked = [item.nodeid for item in request.session.items if item.get_closest_marker(mark)]
    assert [nodeid for nodeid in marked if group_of(nodeid) != mark] == []


def test_all_others_go_by_files() -> None:
    assert group_of("tests/store/test_log.py::test_a[x::y]") == "tests/store/test_log.py"
