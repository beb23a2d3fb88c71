"""RemotingLimits: the bounds of what peers may make a process hold, and of what they may take of a turn."""

from dataclasses import dataclass
from typing import Final

from actors.remoting.frame import MAX_ASSEMBLY_BYTES

# Each peer gets one turn's answers before it is known to be behind, so many peers can pass a bound.
SHED_RATIO: Final = 1.5


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """The bounds of one server or one client."""

    input_budget_bytes: int = 256 * 1024
    """Of one connection's requests in one turn."""
    input_budget_requests: int = 128
    """Small requests cost by their number: 128 sends take some 3 ms."""
    costly_requests_max: int = 128
    """Of one connection that wait; it is read on when there are half as many."""
    turn_budget_us: int = 3_000
    """Of all connections' requests in one turn (see `actors.remoting.turn`)."""
    turn_share_us: int = 1_000
    """What each kind of those that wait has of a turn, whatever the others have taken."""
    turn_output_bytes: int = 4 * 1024 * 1024
    """Of all connections' answers in one turn: so much, and one answer more, before they are written, which
    takes 2 ms. With 16 MiB a send waited twice as long beside pulls of a mebibyte.
    """
    high_water_bytes: int = 4 * 1024 * 1024
    """Of one connection's answers that its peer has not read: from here on no further ones are produced."""
    max_unread_bytes: int = 1024 * 1024 * 1024
    """Of all connections' answers: from here on nothing more is read of peers that are behind. At
    `SHED_RATIO` times as much those who leave most are closed.
    """
    unread_ms: int = 60_000
    """How long a peer may leave answers unread without taking a single byte."""
    idle_ms: int = 120_000
    max_connections: int = 20_000
    max_assembly_bytes: int = MAX_ASSEMBLY_BYTES
    connect_timeout_ms: int = 3_000
    busy_poll_us: int = 0
