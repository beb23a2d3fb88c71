"""Ports: the listening sockets of one process, which share its file descriptors.

    a peer connects ── is there room in the port, and a descriptor that no file needs? ──► accepted
                          └─ no ──► the peers that have been idle longest are closed ──► accepted
                                      └─ no peer is idle ──► refused

A peer that has never completed a request is closed first, whatever it has sent. Without this, idle peers of
one port would take the descriptors that files need, or keep real peers of any port out.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import heapq
import os
import resource
import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from actors.bounds import AtLimit, Bound, Use
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

DESCRIPTORS: Final = Bound(
    "descriptors",
    0,
    AtLimit.CLOSE,
    "Open descriptors of the process; the limit is that of the system without what is kept free for files.",
)
OTHERS: Final = 96
"""Descriptors that are kept free: for files of a moment, and connections to other processes."""
RESERVED: Final = 32
"""Connections of a port that is reachable also when the other descriptors are in use."""
IN_USE_MS: Final = 60_000
"""For this time after its last request, a connection of a client is not closed for another one."""
NEVER_ASKED_NS: Final = 1 << 62
"""Is added to the idle time of a peer that has never completed a request."""
ACCEPTS_PER_TURN: Final = 32
MEASURED_ACCEPTS: Final = 64
"""Connections that are accepted, even if few descriptors are free, before these are counted again."""
_CLOSED_AT_ONCE: Final = 32
"""One in so many peers of a full port is closed: the search takes as long for one as for several."""
PAUSE_NS: Final = 100 * NS_PER_MS
"""Time for which a full port refuses peers before it searches again for one that is idle."""
_LOG_INTERVAL_NS: Final = 1_000 * NS_PER_MS
_RETRY_S: Final = 1.0
_OPEN: Final = Path("/proc/self/fd")
_BACKLOG: Final = 1024
_SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_HANDSHAKE_TIMEOUT_S: Final = 10.0


class Guest(Protocol):
    """The connection of a peer that a port has accepted."""

    def idle_ns(self, now_ns: int) -> int | None:
        """Return how long the peer has requested nothing; None if it may not be closed for another one.

        For a peer that has never completed a request, this is its age and `NEVER_ASKED_NS`.
        """

    def give_way(self) -> None:
        """Close the connection immediately, without a log event: there may be thousands."""


class Ports:
    """The ports of one service. They share the descriptors with those of other services of the event loop."""

    def __init__(self, clock: Clock, missing_files: Callable[[], int] = lambda: 0) -> None:
        """Create the object; `missing_files` returns how many descriptors files may still need."""
        self.missing_files = missing_files
        self.evicted = 0
        """Idle connections that were closed for new ones."""
        self.refused = 0
        self._clock = clock
        self._logged_ns: dict[str, int] = {}

    def bounds(self) -> tuple[Use, ...]:
        """Return the uses of bounds."""
        return (DESCRIPTORS.use(open_descriptors, lambda: _budget().limit()),)

    async def listen(
        self,
        host: str,
        port: int,
        make: Callable[[], asyncio.BaseProtocol],
        guests: Callable[[], Collection[Guest]],
        guests_max: int,
        *,
        tls: ssl.SSLContext | None = None,
        is_reserved: bool = False,
    ) -> Port:
        """Listen on a port; 0 lets the system choose one.

        Args:
            host: the address to bind to.
            port: its port.
            make: returns the protocol of a new connection.
            guests: returns the open connections.
            guests_max: how many there may be; for a reserved port, at most RESERVED.
            tls: for ports that use TLS from the first byte on.
            is_reserved: True if descriptors are kept free for the few connections of this port.

        Raises OSError if the port is in use.
        """
        listener = await bound_socket(asyncio.get_running_loop(), host, port)
        listener.listen(_BACKLOG)
        opened = Port(self, listener, make, guests, guests_max, tls, is_reserved=is_reserved)
        _budget().ports.append(opened)
        return opened

    def has_descriptor(self) -> bool:
        """Take a descriptor, if necessary that of idle peers; return False if files need those that are left.

        Descriptors are counted again when half of those that were free are used up, because the count may
        take long.
        """
        budget = _budget()
        if budget.room <= 0 and self.now_ns() >= budget.full_until_ns:
            free = budget.limit() - open_descriptors()
            budget.room = min(free, max(free // 2, MEASURED_ACCEPTS))
            if budget.room <= 0 and self.evict_any():
                budget.room = 1  # count again when the others are closed
            elif budget.room <= 0:
                budget.full_until_ns = self.now_ns() + PAUSE_NS
        if budget.room <= 0:
            return False
        budget.room -= 1
        return True

    def now_ns(self) -> int:
        """Return the monotonic time."""
        return self._clock.monotonic_ns()

    def evict_any(self) -> int:
        """Close the guests of all ports that have been idle longest; return their number."""
        budget = _budget()
        count = self.evict(chain.from_iterable(each.guests() for each in budget.ports))
        if count:
            budget.begin_closing()
        return count

    def evict(self, guests: Iterable[Guest]) -> int:
        """Close those of the guests that have been idle longest; return their number."""
        now_ns, known = self.now_ns(), list(guests)
        idle = [(idle_ns, each) for each in known if (idle_ns := each.idle_ns(now_ns)) is not None]
        oldest = heapq.nlargest(max(len(known) // _CLOSED_AT_ONCE, 1), idle, key=itemgetter(0))
        for _, guest in oldest:
            guest.give_way()
        self.evicted += len(oldest)
        if oldest and self._may_log("evicted"):
            _log.info("idle_connections_closed", reason="new peers need their places", closed=self.evicted)
        return len(oldest)

    def refuse(self, port: int, reason: str) -> None:
        """Count a refused connection, and log it, at most once in a second."""
        self.refused += 1
        if self._may_log("refused"):
            _log.warning("connections_refused", port=port, reason=reason, refused=self.refused)

    def _may_log(self, what: str) -> bool:
        """Return True at most once in a second."""
        now_ns = self.now_ns()
        if now_ns - self._logged_ns.get(what, -_LOG_INTERVAL_NS) < _LOG_INTERVAL_NS:
            return False
        self._logged_ns[what] = now_ns
        return True


class _Budget:
    """The descriptors that the ports of one event loop may use."""

    def __init__(self) -> None:
        self.ports: list[Port] = []
        self.room = 0
        """Connections that may be accepted before the descriptors are counted again."""
        self.full_until_ns = 0
        self.is_closing = False
        """True until the transports of evicted guests have closed their sockets, in the next turn."""

    def begin_closing(self) -> None:
        """Note that guests were evicted."""
        self.is_closing = True
        asyncio.get_running_loop().call_soon(self._end_closing)

    def _end_closing(self) -> None:
        self.is_closing = False

    def limit(self) -> int:
        """Return how many descriptors may be open in all, without those that are kept free."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        soft = 1 << 30 if soft == resource.RLIM_INFINITY else soft
        for_files = sum(each.missing_files() for each in {each.ports for each in self.ports})
        return max(soft - OTHERS - for_files - sum(each.reserved() for each in self.ports), 0)


_budgets: WeakKeyDictionary[asyncio.AbstractEventLoop, _Budget] = WeakKeyDictionary()
"""Descriptors belong to the process; it has one event loop with ports, and tests several."""


def _budget() -> _Budget:
    return _budgets.setdefault(asyncio.get_running_loop(), _Budget())


class Port:
    """One listening socket."""

    def __init__(
        self,
        ports: Ports,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        guests: Callable[[], Collection[Guest]],
        guests_max: int,
        tls: ssl.SSLContext | None,
        *,
        is_reserved: bool,
    ) -> None:
        """Accept connections from now on; see `Ports.listen`."""
        self.listener = listener
        self.number = int(listener.getsockname()[1])
        self.ports = ports
        self._make = make
        self._guests = guests
        self._guests_max = guests_max
        self._tls = tls
        self._handshake_timeout_s = None if tls is None else _HANDSHAKE_TIMEOUT_S
        self._is_reserved = is_reserved
        self.loop = asyncio.get_running_loop()
        self._opening: set[_Opening] = set()
        self._full_until_ns = 0
        self._retry: asyncio.TimerHandle | None = None
        self.loop.add_reader(listener, self._accept)

    def guests(self) -> Iterable[Guest]:
        """Return the connections of this port that are open or being opened."""
        return chain(self._guests(), self._opening)

    def reserved(self) -> int:
        """Return how many descriptors are kept free for this port."""
        return RESERVED - len(self._guests()) if self._is_reserved else 0

    def close(self) -> None:
        """Stop listening; the connections stay open."""
        if self.listener.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self.loop.remove_reader(self.listener)
        self.listener.close()
        _budget().ports.remove(self)
        for each in tuple(self._opening):
            each.give_way()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN // (4 if self._is_reserved else 1)):
            if self._tls is None and self._opening and self._is_full():
                return  # their connections may count already: decide in the next turn
            if _budget().is_closing and not self._is_reserved:
                return
            try:
                accepted, _ = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORTAGES:
                    raise
                self._pause(error)
                return
            if self._has_place():
                accepted.setblocking(False)
                self._opening.add(_Opening(self, accepted, self.ports.now_ns()))
            else:
                accepted.close()

    def _has_place(self) -> bool:
        """Return True if there is a place for a new connection, if necessary that of an idle peer."""
        limit, ports = self._guests_max, self.ports
        if self._is_full() and not self._evict():
            ports.refuse(self.number, f"over the limit of {limit:,} connections, and no peer is idle")
            return False
        if not self._is_reserved and not ports.has_descriptor():
            ports.refuse(self.number, _shortage())
            return False
        return True

    def _is_full(self) -> bool:
        return len(self._guests()) + len(self._opening) >= self._guests_max

    def _evict(self) -> bool:
        """Close idle peers of this port; return False without one, now or a moment ago."""
        now_ns = self.ports.now_ns()
        if now_ns < self._full_until_ns:
            return False
        if self.ports.evict(self.guests()):
            return True
        self._full_until_ns = now_ns + PAUSE_NS
        return False

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment: another part of the process has taken the last descriptors."""
        self.ports.refuse(self.number, f"{error.strerror}: {_shortage()}")
        self.ports.evict_any()
        self.loop.remove_reader(self.listener)
        self._retry = self.loop.call_later(_RETRY_S, self.loop.add_reader, self.listener, self._accept)

    async def open(self, opening: _Opening, accepted: socket.socket) -> None:
        """Create the connection of an accepted socket."""
        try:
            await self.loop.connect_accepted_socket(
                self._make, accepted, ssl=self._tls, ssl_handshake_timeout=self._handshake_timeout_s
            )
        except OSError as error:
            _log.debug("connection_not_opened", port=self.number, error=repr(error))
            accepted.close()
        except Exception:  # noqa: BLE001 - logged
            _log.exception("connection_not_opened", port=self.number)
            accepted.close()
        finally:
            self._opening.discard(opening)


class _Opening:
    """A connection whose protocol is not created yet, because of its TLS handshake."""

    def __init__(self, port: Port, accepted: socket.socket, now_ns: int) -> None:
        self._since_ns = now_ns
        self._accepted = accepted
        self._task = asyncio.ensure_future(port.open(self, accepted))

    def idle_ns(self, now_ns: int) -> int:
        """Return its age: it has never completed a request."""
        return now_ns - self._since_ns + NEVER_ASKED_NS

    def give_way(self) -> None:
        """Shut the socket down: its transport, or protocol, then closes it."""
        with contextlib.suppress(OSError):
            self._accepted.shutdown(socket.SHUT_RDWR)


def _shortage() -> str:
    """Return why there is no descriptor for a connection, in words."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"{open_descriptors():,} of {limit:,} descriptors are open, the others are kept for files, and no "
        "peer is idle: raise the limit of open files (ulimit -n)"
    )


def open_descriptors() -> int:
    """Return the number of open descriptors of this process."""
    counted = _OPEN.stat().st_size  # 0 before Linux 6.2
    return counted or sum(1 for _ in _OPEN.iterdir()) - 1  # without that of the iteration


async def bound_socket(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Return a socket that is bound to the address. Raises OSError if the port is in use."""
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # SO_REUSEADDR: sockets in TIME_WAIT would block the port after a kill. Never SO_REUSEPORT: it would
        # let two brokers share the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(address)
    except OSError as error:
        listener.close()
        text = f"cannot listen on {host}, port {port}: {os.strerror(error.errno or 0)}"
        raise OSError(error.errno, text) from error
    return listener
