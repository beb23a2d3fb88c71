"""Timers that can wait end at the beats of the loop, at most a quarter of a second early or late."""

from __future__ import annotations

import pytest

from actors.beat import on_beat_s, pause_ms


@pytest.mark.parametrize("now_s", [0.0, 0.1, 0.2499, 0.4, 17.49])
@pytest.mark.parametrize("delay_s", [0.5, 0.7, 1.0, 30.0])
def test_long_timer_ends_at_the_nearest_beat(delay_s: float, now_s: float) -> None:
    left_s = on_beat_s(delay_s, now_s)
    beats = (now_s + left_s) / 0.5
    assert beats == pytest.approx(round(beats))
    assert left_s == pytest.approx(delay_s, abs=0.2501)


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.499])
def test_short_timer_is_not_moved(delay_s: float) -> None:
    assert on_beat_s(delay_s, 0.3) == delay_s


@pytest.mark.parametrize(
    ("left_ms", "expected_ms"),
    [(None, 500), (9_000, 500), (500, 500), (230, 230), (100, 100), (7, 100), (-5, 100)],
)
def test_pause_ends_when_work_is_due_but_after_one_beat_at_last(
    left_ms: int | None, expected_ms: int
) -> None:
    assert pause_ms(left_ms, least_ms=100) == expected_ms


def test_pause_is_never_shorter_than_the_least() -> None:
    assert pause_ms(None, least_ms=900) == pause_ms(3, least_ms=900) == 900
