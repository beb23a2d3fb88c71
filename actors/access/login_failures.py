"""LoginFailures: counts failed logins by user and by address, and refuses further ones for a while.

user   address         failed at
root   192.0.2.7       0 s, 2 s, 4 s      a login that succeeds clears the row of its user and address,
alice  192.0.2.7       3 s                and no other one
root   2001:db8::/64   5 s                an IPv6 address counts as its /64 network
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence
from threading import Lock

from actors.access.signatures import packed_network
from actors.bounds import AtLimit, Bound, Use
from store.common.clock import NS_PER_MS, Clock

OF_ADDRESS_MAX = 5
"""Failed logins of one address within WINDOW_MS, after which its logins are refused."""
OF_USER_MAX = 20
"""Failed logins of one user from all addresses within WINDOW_MS, after which its logins are refused."""
WINDOW_MS = 60_000
ROWS = Bound("failed_logins", 1_000, AtLimit.EVICT, "Users and addresses with failed logins within a minute.")

Row = tuple[str, bytes]
"""A user, and the network of an address."""


class TooManyFailures(Exception):
    """A login is refused, because too many have failed lately."""


class LoginFailures:
    """The failed logins of the last minute, in a bounded table. Its methods are called by several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._times_ns: dict[Row, list[int]] = {}
        self._lock = Lock()

    def begin(self, user: str, address: str, *, is_known: bool) -> int:
        """Count a login as failed until its result is known; return the mark for `forget`.

        Logins from an address that `is_known` for the user are not refused because of other addresses.
        Raises TooManyFailures.
        """
        with self._lock:
            return self._begin(row_of(user, address), address, is_known=is_known)

    def forget(self, user: str, address: str, mark: int | None = None) -> None:
        """Forget all failures of a user at an address after a success, or only the one of a mark."""
        row = row_of(user, address)
        with self._lock:
            times = self._times_ns.get(row, [])
            if mark in times:
                times.remove(mark)
            if mark is None or not times:
                self._times_ns.pop(row, None)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (ROWS.use(self._times_ns.__len__),)

    def _begin(self, row: Row, address: str, *, is_known: bool) -> int:
        now_ns, (user, place) = self._clock.monotonic_ns(), row
        self._drop_old(now_ns)
        users, networks = Counter[str](), Counter[bytes]()
        for (name, network), times in self._times_ns.items():
            users[name] += len(times)
            networks[network] += len(times)
        for count, limit, what in (
            (networks[place], OF_ADDRESS_MAX, f"from {address}"),
            (0 if is_known else users[user], OF_USER_MAX, f"of {user[:100]!r}"),
        ):
            if count >= limit:
                text = f"{count} logins {what} have failed within a minute"
                raise TooManyFailures(text)
        if row not in self._times_ns and len(self._times_ns) >= ROWS.limit:
            # Not the oldest one: guesses of other users would clear the failures of the one that is meant.
            del self._times_ns[min(self._times_ns, key=lambda each: max(users[each[0]], networks[each[1]]))]
        self._times_ns.setdefault(row, []).append(now_ns)
        return now_ns

    def _drop_old(self, now_ns: int) -> None:
        oldest_ns = now_ns - WINDOW_MS * NS_PER_MS
        for row, times in list(self._times_ns.items()):
            self._times_ns[row] = recent = [at_ns for at_ns in times if at_ns > oldest_ns]
            if not recent:
                del self._times_ns[row]


def row_of(user: str, address: str) -> Row:
    """Return the row of a user and an address."""
    try:
        packed = ipaddress.ip_address(address.partition("%")[0]).packed
    except ValueError:
        packed = b""
    return user, packed_network(packed)
