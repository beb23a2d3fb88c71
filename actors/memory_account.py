"""MemoryAccount: what the peers of one process make it keep, shared among their connections.

    limit ┬──────────────  above it, the connections that hold the most give up a request, and no connection
          │               is read that has requests in work or responses unread (`is_read_later`)
          │  small ones   `add`: a request of a few KB always finds room here
    3/4   ┼──────────────
          │  large ones   `take`: waits for room, and is not read or begun until then
        0 ┴──────────────

Everything that a peer sends or does not read counts for its connection, and each connection for its network:
an IPv4 address, or the first 64 bits of an IPv6 address. No connection has a fixed share. But one that asks
for room may push out a connection of a network that holds more than its own would hold then, or, in its own
network, a connection that holds more. So a peer can fill the account only as long as no other one needs it.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from actors.bounds import AtLimit, Bound, Use

REQUEST_BYTES: Final = Bound(
    "request_bytes",
    128 * 1024 * 1024,
    AtLimit.WAIT,
    "Bytes that peers make a process keep: requests, incomplete ones too, and responses that are not read.",
)
SMALL_BYTES: Final = 192 * 1024
"""Room for a request of 64 KiB and its copies."""
_TRIED_MAX: Final = 16
"""Connections that are tried to give up a request before the account stays above its limit for a while."""

STALLED_MS: Final = 500
"""Time after which a request that waits for its peer gives way to others that wait."""

Granted = Callable[[], None]
PushOut = Callable[[bool], bool]


class MemoryAccount:
    """Counts the memory that peers make one process keep. Use it on one event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.taken_bytes = 0
        """The part that was granted by `take`."""
        self.unfinished_bytes = 0
        """The part that no peer keeps back: requests that wait for this process; and unread responses."""
        self.peak_bytes = 0
        """The most that was used since it was set back."""
        self._networks: dict[str, Network] = {}
        self._waiting: dict[Share, None] = {}
        self._unread: dict[Share, Granted] = {}

    def share(self, host: str, push_out: PushOut) -> Share:
        """Return the share of a new connection.

        Args:
            host: IP address of the peer.
            push_out: gives up the request that holds the most and waits for the peer; returns False if the
                connection has none. Its argument is True if the limit is exceeded; if it is False, others
                wait, and the request must have stalled for `STALLED_MS`.
        """
        name = network_of(host)
        network = self._networks.setdefault(name, Network(name))
        share = Share(self, network, push_out)
        network.shares[share] = None
        return share

    def bounds(self) -> Sequence[Use]:
        """Return the use of its bound."""
        return (REQUEST_BYTES.use(lambda: self.used_bytes, lambda: self.limit_bytes),)

    @property
    def waiting(self) -> int:
        """Number of connections with a request that waits for room."""
        return len(self._waiting)

    def fits(self, size_bytes: int) -> bool:
        """Return True if there is room for a large request: always for one, so that requests proceed."""
        return not self.taken_bytes or self.used_bytes + size_bytes <= self.limit_bytes * 3 // 4

    def keep_limit(self, adding: Share) -> None:
        """Push out connections that hold more than one that has added, until the limit is kept."""
        while self.is_over and self._push_out(adding, 0, is_over=True):
            pass

    @property
    def is_over(self) -> bool:
        """Whether connections must give up incomplete requests."""
        return self.used_bytes - self.unfinished_bytes > self.limit_bytes

    def press(self) -> None:
        """Let connections that hold more and have stalled give way to those that wait; call it regularly."""
        self.grant(is_pressing=True)
        if self._unread and not self.is_low:
            asking = min(self._unread, key=lambda each: (each.network.used_bytes, each.size_bytes))
            self._push_out(asking, 0, is_over=False)

    @property
    def is_low(self) -> bool:
        """Whether connections that are not read may be read again."""
        return self.used_bytes <= self.limit_bytes * 3 // 4

    def _push_out(self, asking: Share, size_bytes: int, *, is_over: bool) -> bool:
        own, tried = asking.network, 0
        for network in sorted(self._networks.values(), key=lambda each: -each.used_bytes):
            if network is not own and network.used_bytes <= own.used_bytes + size_bytes:
                continue
            for share in sorted(network.shares, key=lambda each: -each.size_bytes):
                if share is asking or (network is own and share.size_bytes <= asking.size_bytes + size_bytes):
                    break
                if share.push_out(is_over):
                    return True
                tried += 1
                if tried > _TRIED_MAX:
                    return False
        return False

    # ---- for the shares --------------------

    def change(self, share: Share, size_bytes: int, taken_bytes: int = 0) -> None:
        """Add to a share, or release a part of it; `taken_bytes` of it were granted."""
        share.taken_bytes += taken_bytes
        self.taken_bytes += taken_bytes
        share.size_bytes += size_bytes
        share.network.used_bytes += size_bytes
        self.used_bytes += size_bytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes
        if (size_bytes < 0 or taken_bytes < 0) and self._waiting:
            self.grant()
        if size_bytes < 0 and self._unread:
            self._read_on(share)

    def read_later(self, share: Share, resume: Granted) -> None:
        """Call `resume` when the connection may be read again."""
        self._unread[share] = resume

    def _read_on(self, share: Share) -> None:
        if self.is_low:
            unread, self._unread = self._unread, {}
            for resume in unread.values():
                resume()
        elif share in self._unread and not share.unfinished_bytes:
            self._unread.pop(share)()

    def wait(self, share: Share) -> None:
        """Grant room to the share later."""
        self._waiting[share] = None

    def grant(self, *, is_pressing: bool = False) -> None:
        """Grant room to those that wait, first to those that would hold the least.

        If `is_pressing`, connections that hold more and have stalled are pushed out.
        """
        while self._waiting:
            share = min(
                self._waiting,
                key=lambda each: (each.network.used_bytes, each.size_bytes + each.first_request()[1]),
            )
            granted, size_bytes = share.first_request()
            if not self.fits(size_bytes):
                if is_pressing and self._push_out(share, size_bytes, is_over=False):
                    continue  # what was released may have been granted already
                return
            del share.requests[granted]
            if not share.requests:
                del self._waiting[share]
            self.change(share, size_bytes, size_bytes)
            granted()

    def stop_waiting(self, share: Share) -> None:
        """Grant nothing to the share any more."""
        self._waiting.pop(share, None)
        self._unread.pop(share, None)

    def leave(self, share: Share) -> None:
        """Forget a closed connection."""
        network = share.network
        network.shares.pop(share, None)
        if not network.shares:
            self._networks.pop(network.name, None)


class Network:
    """The connections of one network."""

    __slots__ = ("name", "shares", "used_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.shares: dict[Share, None] = {}
        self.used_bytes = 0


class Share:
    """What one connection holds."""

    __slots__ = (
        "_account",
        "_is_closed",
        "held_bytes",
        "network",
        "push_out",
        "requests",
        "size_bytes",
        "taken_bytes",
        "unfinished_bytes",
    )

    def __init__(self, account: MemoryAccount, network: Network, push_out: PushOut) -> None:
        self._account = account
        self.network = network
        self.push_out = push_out
        self.size_bytes = 0
        self.taken_bytes = 0
        self.unfinished_bytes = 0
        """The part of requests in work and unread responses."""
        self.held_bytes = 0
        """The part of requests in work: they are finished even if the connection closes."""
        self.requests: OrderedDict[Granted, int] = OrderedDict()
        """Those that wait for room, with their sizes; any of them may leave in between."""
        self._is_closed = False

    def add(self, size_bytes: int) -> None:
        """Count memory that is in use already; negative to release it.

        Above the limit, those that hold more give up a request, or else this connection does.
        """
        self._account.change(self, size_bytes)
        if size_bytes > 0:
            self.keep_limit()

    def keep_limit(self) -> None:
        """Above the limit, let those that hold more give up a request, or else this connection."""
        account = self._account
        if account.is_over:
            account.keep_limit(self)
            if account.is_over:
                self.push_out(True)

    def count_input(self, size_bytes: int, unfinished_bytes: int) -> None:
        """Count received bytes without pushing others out; `unfinished_bytes` wait for this process."""
        if not self._is_closed:
            self._account.unfinished_bytes += unfinished_bytes
            self._account.change(self, size_bytes)

    def count_unread(self, size_bytes: int) -> None:
        """Count unread responses without pushing others out; negative to release them."""
        if not self._is_closed:
            self._count_unfinished(size_bytes)

    def hold(self, size_bytes: int) -> None:
        """Count a request in work; negative when it is finished, which may be after `close`."""
        self.held_bytes += size_bytes
        self._count_unfinished(size_bytes)
        self._leave()

    def _count_unfinished(self, size_bytes: int) -> None:
        self.unfinished_bytes += size_bytes
        self._account.unfinished_bytes += size_bytes
        self._account.change(self, size_bytes)

    def is_read_later(self, resume: Granted) -> bool:
        """Return True if the connection must not be read now; `resume` is called when it may."""
        account = self._account
        if account.used_bytes <= account.limit_bytes or not self.unfinished_bytes:
            return False
        account.read_later(self, resume)
        return True

    def take(self, size_bytes: int, granted: Granted) -> bool:
        """Count memory that will be used; return True if there is room, or call `granted` later."""
        account = self._account
        if size_bytes > SMALL_BYTES and not account.fits(size_bytes):
            self.requests[granted] = size_bytes
            account.wait(self)
            return False
        account.change(self, size_bytes, size_bytes)
        account.keep_limit(self)
        return True

    def first_request(self) -> tuple[Granted, int]:
        """Return the request that waits longest, and its size."""
        return next(iter(self.requests.items()))

    def give(self, size_bytes: int) -> None:
        """Release what was granted by `take`."""
        self._account.change(self, -size_bytes, -size_bytes)

    def pause(self, size_bytes: int) -> None:
        """Note that work to which this was granted waits for more: it still counts, but others may begin."""
        self._account.change(self, 0, -size_bytes)

    def resume(self, size_bytes: int) -> None:
        """Note that the work after `pause` continues."""
        self._account.change(self, 0, size_bytes)

    def withdraw(self, granted: Granted) -> None:
        """Do not call `granted` any more."""
        self.requests.pop(granted, None)
        if not self.requests:
            self._account.stop_waiting(self)

    def stop_waiting(self) -> None:
        """Grant nothing any more: the connection is not read."""
        self.requests.clear()
        self._account.stop_waiting(self)

    def close(self) -> None:
        """Release everything but the requests in work: the connection is closed."""
        self._is_closed = True
        self.push_out = (
            _has_nothing  # a reference to the connection would keep it until the garbage collection
        )
        self.stop_waiting()
        self._count_unfinished(self.held_bytes - self.unfinished_bytes)
        self._account.change(self, self.held_bytes - self.size_bytes, -self.taken_bytes)
        self._leave()

    def _leave(self) -> None:
        if self._is_closed and not self.held_bytes:
            self._account.leave(self)


def _has_nothing(_is_over: bool) -> bool:
    return False


def network_of(host: str) -> str:
    """Return an IPv4 address itself, and of an IPv6 address its first 64 bits."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a connection within the process
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    if address.version == 4 or mapped is not None:
        return str(mapped or address)
    return str(ipaddress.ip_network((address, 64), strict=False))
