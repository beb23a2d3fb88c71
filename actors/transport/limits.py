"""RemotingLimits: bounds on the memory and event-loop time that the peers of a process may use."""

from dataclasses import dataclass
from typing import Final

from actors.bounds import AtLimit, Bound

# Connections are closed only at this multiple of `max_unread_bytes`: each peer gets one turn's responses
# before it is known to be behind, so many peers can exceed the limit for a short time.
SHED_RATIO: Final = 1.5
CONNECTIONS: Final = Bound(
    "connections", 20_000, AtLimit.CLOSE, "Open connections of clients; idle ones are closed first."
)
CONNECTIONS_PER_ADDRESS: Final = Bound(
    "connections_per_address",
    0,
    AtLimit.REFUSE,
    "Open connections of one IP address, or of one IPv6 network (/64).",
)
KEPT_BYTES: Final = 512 * 1024 * 1024

COSTLY_REQUESTS: Final = Bound(
    "costly_requests", 128, AtLimit.WAIT, "Costly requests of one connection that wait, such as pulls."
)


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """Limits of one server or one client."""

    costly_requests_max: int = COSTLY_REQUESTS.limit
    """Maximum number of waiting costly requests of one connection.

    Reading resumes when half of them are handled.
    """
    turn_budget_us: int = 3_000
    """Time budget of one turn (see `actors.transport.scheduler`)."""
    turn_share_us: int = 1_000
    """Minimum time for each work queue in a turn, even if the budget is used up."""
    turn_output_bytes: int = 4 * 1024 * 1024
    """Responses that are collected in one turn before they are written.

    Writing 4 MiB takes 2 ms. With 16 MiB, sends waited twice as long while 1 MiB pulls were served.
    """
    high_water_bytes: int = 4 * 1024 * 1024
    """High-water mark of unread responses of one connection; above it no further responses are produced."""
    max_unread_bytes: int = 1024 * 1024 * 1024
    """Limit on the unread responses of all connections; above it peers that are behind are not read.

    At `SHED_RATIO` times this limit the connections with the most unread bytes are closed.
    """
    unread_ms: int = 60_000
    """Time after which a connection is closed whose peer has unread responses and reads no byte."""
    idle_ms: int = 120_000
    max_connections: int = CONNECTIONS.limit
    max_connections_per_address: int = CONNECTIONS_PER_ADDRESS.limit
    """Limit of connections of one IP address, also of those that have sent nothing yet; 0: no limit."""
    max_kept_bytes: int = KEPT_BYTES
    """Limit on all that peers make the process keep (`actors.memory_account`)."""
    crowded_ms: int = 10_000
    """Time after which an incomplete long frame is dropped with its connection while others wait for room."""
    connect_timeout_ms: int = 3_000
    handshake_timeout_ms: int = 10_000
    """Time from the first byte of a TLS handshake after which a server closes an unfinished one."""
    busy_poll_us: int = 0
