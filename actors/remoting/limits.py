"""RemotingLimits: how much memory and loop time the peers of a process may use."""

from dataclasses import dataclass
from typing import Final

from actors.remoting.frame import MAX_ASSEMBLY_BYTES

# Each peer gets one turn's responses before it is known to be behind, so many peers can exceed a bound.
SHED_RATIO: Final = 1.5


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """The bounds of one server or one client."""

    costly_requests_max: int = 128
    """Waiting costly requests of one connection; it is read on when half of them are done."""
    turn_budget_us: int = 3_000
    """Time of one turn (see `actors.remoting.turn`)."""
    turn_share_us: int = 1_000
    """Time that each queue has in a turn, even if the others have used up the budget."""
    turn_output_bytes: int = 4 * 1024 * 1024
    """Responses of one turn: they are written, which takes 2 ms, before more are produced. With 16 MiB a send
    waited twice as long beside pulls of one MiB.
    """
    high_water_bytes: int = 4 * 1024 * 1024
    """Unread responses of one connection: beyond this no further ones are produced."""
    max_unread_bytes: int = 1024 * 1024 * 1024
    """Unread responses of all connections: beyond this nothing more is read of peers that are behind. At
    `SHED_RATIO` times as much the peers that leave most are closed.
    """
    unread_ms: int = 60_000
    """How long a peer may leave responses unread without taking a single byte."""
    idle_ms: int = 120_000
    max_connections: int = 20_000
    max_assembly_bytes: int = MAX_ASSEMBLY_BYTES
    connect_timeout_ms: int = 3_000
    busy_poll_us: int = 0
