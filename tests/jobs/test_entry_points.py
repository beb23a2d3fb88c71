"""The functions that programs import from `jobs`."""

from __future__ import annotations

import pytest

import jobs


@pytest.mark.slow
@pytest.mark.parametrize("name", jobs.__all__)
def test_each_public_function_is_found_in_its_room(name: str) -> None:
    assert getattr(jobs, name).__name__ == name


def test_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'read_queues'"):
        _ = jobs.read_queues
