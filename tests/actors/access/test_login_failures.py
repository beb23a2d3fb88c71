"""Counts of failed logins: by user and address, in a bounded table."""

from __future__ import annotations

import pytest

from actors.access.login_failures import (
    OF_ADDRESS_MAX,
    OF_USER_MAX,
    ROWS,
    WINDOW_MS,
    LoginFailures,
    TooManyFailures,
)
from tests.conftest import ClockAtRest


@pytest.fixture
def failures(clock: ClockAtRest) -> LoginFailures:
    return LoginFailures(clock)


def fail(failures: LoginFailures, user: str, address: str, times: int = 1, *, is_known: bool = False) -> int:
    """Let logins fail; return how many of them were not refused."""
    for number in range(times):
        try:
            failures.begin(user, address, is_known=is_known)
        except TooManyFailures:
            return number
    return times


def test_success_of_another_user_or_address_clears_no_failures(failures: LoginFailures) -> None:
    assert fail(failures, "root", "192.0.2.7", 4) == 4
    failures.begin("alice", "192.0.2.7", is_known=False)
    failures.forget("alice", "192.0.2.7")
    failures.forget("root", "192.0.2.8")
    assert fail(failures, "root", "192.0.2.7", 4) == OF_ADDRESS_MAX - 4
    failures.forget("root", "192.0.2.7")
    assert fail(failures, "root", "192.0.2.7", 9) == OF_ADDRESS_MAX


def test_login_without_a_result_is_no_failure(failures: LoginFailures) -> None:
    for _ in range(20):
        mark = failures.begin("root", "192.0.2.7", is_known=False)
        failures.forget("root", "192.0.2.7", mark)


@pytest.mark.parametrize(
    ("addresses", "counted"),
    [
        (["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:0:9::"], OF_ADDRESS_MAX),
        (["2001:db8:0:1::1", "2001:db8:0:2::1", "2001:db8:0:3::1"], 3 * OF_ADDRESS_MAX),
        (["192.0.2.7", "192.0.2.8"], 2 * OF_ADDRESS_MAX),
        (["::ffff:192.0.2.7", "::ffff:192.0.2.8"], 2 * OF_ADDRESS_MAX),
        (["", "nonsense"], OF_ADDRESS_MAX),
    ],
)
def test_addresses_of_one_ipv6_network_count_together(
    failures: LoginFailures, addresses: list[str], counted: int
) -> None:
    assert sum(fail(failures, "root", each, 9) for each in addresses) == counted


def test_user_is_guessed_from_many_addresses_only_so_often(
    failures: LoginFailures, clock: ClockAtRest
) -> None:
    assert sum(fail(failures, "root", f"192.0.2.{number}") for number in range(99)) == OF_USER_MAX
    assert fail(failures, "alice", "192.0.2.1") == 1
    assert fail(failures, "root", "198.51.100.1", is_known=True) == 1
    clock.advance(WINDOW_MS)
    assert fail(failures, "root", "198.51.100.2") == 1


def test_full_table_forgets_no_repeated_failures(failures: LoginFailures) -> None:
    assert fail(failures, "alice", "192.0.2.7", 9) == OF_ADDRESS_MAX
    assert sum(fail(failures, "root", f"198.51.100.{number}") for number in range(99)) == OF_USER_MAX
    for number in range(ROWS.limit + 9):
        assert fail(failures, f"user-{number}", f"10.0.{number // 250}.{number % 250}") == 1
    (use,) = failures.bounds()
    assert use.read() == ROWS.limit
    assert fail(failures, "alice", "192.0.2.7") == 0
    assert fail(failures, "root", "192.0.2.9") == 0
