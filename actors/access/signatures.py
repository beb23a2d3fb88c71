"""SignatureCheck: accepts or refuses the signatures of requests, and slows down repeated failures.

It also finds the requests whose response must be signed (`actors.wire.signing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from actors.bounds import AtLimit, Bound, Use
from actors.transport.connection import Connection
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from actors.wire.signing import PROOF, RECEIVER, SIGNATURE, Credentials, Signer, signed_ms
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

FREE_FAILURES: Final = 10
"""Failed signatures of one address within FAILURE_WINDOW_MS that are refused without delay."""
FAILURE_WINDOW_MS: Final = 60_000
REFUSAL_DELAY_MS: Final = 1_000
ADDRESSES: Final = Bound(
    "failed_addresses",
    1_000,
    AtLimit.EVICT,
    "Addresses whose failed signatures are counted.",
)
"""If there are more, the one with the fewest is forgotten: if it were
the oldest, further addresses could clear the count of the first.
"""
_LOG_INTERVAL_MS: Final = 1_000
_PORT_BYTES: Final = 4
_IPV6_NETWORK_BYTES: Final = 8

# Checks the signatures of unknown users, so that the response time does not reveal if a user exists.
_UNKNOWN: Final = Signer(Credentials("unknown", "unknown"))


class SignatureCheck:
    """Checks signatures: the key, the time within the window, and RayMQ's version for the inner user.

    Failures are logged, at most one per second, and counted by address (of IPv6: by /64 network). After
    FREE_FAILURES, each failure is refused after REFUSAL_DELAY_MS; its connection is not read until then.
    """

    def __init__(self, clock: Clock, window_ms: int, addresses: Iterable[str] = ()) -> None:
        """Create the object.

        Args:
            clock: for the times of signatures.
            window_ms: the largest difference between the time of a signature and that of the clock.
            addresses: the addresses of this process, besides the socket addresses on which it listens.
        """
        self._clock = clock
        self._window_ms = window_ms
        self._addresses = frozenset(addresses)
        self._failures = Failures()
        self._logged_ns: int | None = None
        self._not_logged = 0

    def __call__(
        self, context: RequestContext, name: str, signer: Signer | None, is_inner: bool, refusal: str
    ) -> None:
        """Raise Refused (NO_PERMISSION) unless `signer` has signed the request within the window.

        Args:
            context: The request.
            name: The user that it names.
            signer: The signer of this user; None if the user is unknown.
            is_inner: True for the inner user, which does not use RocketMQ's signature.
            refusal: The remark for an unknown user or a wrong signature; `{user}` stands for the name.
        """
        command = context.command
        at_ms = signed_ms(command)
        if not (signer or _UNKNOWN).has_signed(command, at_ms) or signer is None:
            delay_ms = self._delay_ms(context.connection)
            self._log(context, name, "unknown user" if signer is None else "wrong signature")
            raise Refused(ResponseCode.NO_PERMISSION, refusal.format(user=repr(name[:100])), delay_ms)
        if at_ms is not None:
            self._check_time(context, name, at_ms)
        elif is_inner:
            self._log(context, name, "RocketMQ's signature by the inner user")
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"user {name[:100]!r} is the cluster's inner user, which does not use RocketMQ's signature: "
                "create a user for RocketMQ's clients and tools with `raymq user create --super`",
            )
        if RECEIVER in command.ext and (is_inner or PROOF in command.ext):
            self._check_receiver(context, name, command.ext[RECEIVER])
            context.sign = partial(signer.signed_response, command.ext[SIGNATURE])

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return self._failures.bounds()

    def _check_receiver(self, context: RequestContext, name: str, named: str) -> None:
        """Raise Refused if the request was sent to another process, which has passed it on."""
        dialled, _, resolved = named.partition("=")
        local = _without_mapping(context.connection.local)
        if dialled not in self._addresses and (resolved or dialled) != local:
            self._log(context, name, f"the request is for {named[:200]}, not for {local}")
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the request was sent to {named[:200]}, but this process is {local}: if that address is "
                "translated to this one, add it to receiver_addresses",
            )

    def _check_time(self, context: RequestContext, name: str, at_ms: int) -> None:
        late_ms = self._clock.wall_ms() - at_ms
        if abs(late_ms) > self._window_ms:
            self._log(context, name, f"signed {late_ms:,} ms before this server's time")
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the request was signed {abs(late_ms):,} ms {'before' if late_ms > 0 else 'after'} this "
                f"server's time, more than signature_window_ms {self._window_ms:,}: synchronize the clocks "
                "of client and server",
            )

    def _delay_ms(self, connection: Connection) -> int:
        count = self._failures.add(
            packed_network(connection.peer_bytes[:-_PORT_BYTES]), self._clock.monotonic_ns()
        )
        return REFUSAL_DELAY_MS if count > FREE_FAILURES else 0

    def _log(self, context: RequestContext, name: str, reason: str) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._logged_ns is not None and now_ns - self._logged_ns < _LOG_INTERVAL_MS * NS_PER_MS:
            self._not_logged += 1
            return
        peer, code = context.connection.peer, int(context.command.code)
        _log.warning(
            "request_not_authenticated",
            peer=peer,
            user=name[:100],
            code=code,
            reason=reason,
            not_logged=self._not_logged,
        )
        self._logged_ns, self._not_logged = now_ns, 0


def _without_mapping(address: str) -> str:
    """Return the socket address of a connection; that of an IPv4-mapped IPv6 address as IPv4."""
    host, _, port = address.rpartition(":")
    return f"{host[len(_MAPPED) : -1]}:{port}" if host.startswith(_MAPPED) and "." in host else address


_MAPPED: Final = "[::ffff:"


class Failures:
    """Counts failures by address within a window that begins with the first one."""

    def __init__(self) -> None:
        self._counts: dict[bytes, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def bounds(self) -> Sequence[Use]:
        """Return the uses of bounds."""
        return (ADDRESSES.use(self.__len__),)

    def add(self, address: bytes, now_ns: int) -> int:
        """Add one failure of an address; return the number in its window."""
        count, since_ns = self._counts.get(address, (0, now_ns))
        if now_ns - since_ns >= FAILURE_WINDOW_MS * NS_PER_MS:
            count, since_ns = 0, now_ns
            self._counts.pop(address, None)
        elif count == 0 and len(self._counts) >= ADDRESSES.limit:
            self._make_room(now_ns)
        self._counts[address] = (count + 1, since_ns)
        return count + 1

    def _make_room(self, now_ns: int) -> None:
        oldest_ns = now_ns - FAILURE_WINDOW_MS * NS_PER_MS
        for address in [each for each, (_, since_ns) in self._counts.items() if since_ns <= oldest_ns]:
            del self._counts[address]
        if len(self._counts) >= ADDRESSES.limit:
            del self._counts[min(self._counts, key=lambda each: self._counts[each][0])]


def packed_network(address: bytes) -> bytes:
    """Return a packed IP address; of an IPv6 address only the /64 network."""
    is_ipv4 = len(address) == 4 or address.startswith(_IPV4_MAPPED)
    return address if is_ipv4 else address[:_IPV6_NETWORK_BYTES]


_IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"
