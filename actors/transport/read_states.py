"""ReadState: what the input of one connection does or waits for, and what changes it.

A connection is in one state at a time. It waits for one thing at a time too: when that has come it is OLD,
and in its turn it looks again at everything that could stop it. So no reason to wait is counted or cleared.
"""

from enum import IntEnum
from typing import Final


class ReadState(IntEnum):
    """What the input of a connection does or waits for."""

    READING = 0
    """The socket is read, and requests are decoded as they arrive."""
    ASIDE = 1
    """READING, but only costly requests have arrived: decoded, a few at a time, when such are served."""
    NEW = 2
    """Bytes arrived when the turn's time was used up: decoded in the next turn, before those of OLD."""
    OLD = 3
    """Served in this turn, or what it waited for has come: it continues in the next turn."""
    DECODING = 4
    """Its turn: kept bytes are decoded, then the socket is read again."""
    OUTPUT_FULL = 5
    """Waits for a flush, or until the peer has read responses."""
    MANY_WAITING = 6
    """Waits until half of its costly requests are served."""
    NO_ROOM = 7
    """A long frame waits for its place, or the account of memory is full: until others have released some."""
    HELD = 8
    """No request is handled until a delayed response is sent."""
    STOPPED = 9
    """Input is dropped; costly requests that were received before are still handled."""


class ReadEvent(IntEnum):
    """What changes the state."""

    TURN = 0
    FLUSHED = 1
    HALF_SERVED = 2
    ROOM = 3
    HOLD = 4
    RELEASE = 5
    STOP = 6
    BYTES = 7
    SERVE = 8
    """Costly requests are served, and none is decoded."""
    ONLY_COSTLY = 9
    LATE = 10
    """Bytes arrived when the turn's time was used up."""
    TIME_OVER = 11
    """The turn's time was used up while requests were decoded."""
    OUTPUT_OVER = 12
    COSTLY_OVER = 13
    ROOM_OVER = 14
    ALL_READ = 15
    """No complete request is left."""


SOCKET_READ: Final = frozenset({ReadState.READING, ReadState.ASIDE, ReadState.STOPPED})
"""States in which the socket is read. STOPPED is one, because closing a socket with unread bytes resets the
connection, and the peer could lose responses."""

FROM_OUTSIDE: Final = tuple(ReadEvent)[: ReadEvent.BYTES]
"""Events that come in any state. Where no row names them they change nothing; the others are errors there."""

_OBSTACLES: Final = {
    ReadEvent.TIME_OVER: ReadState.OLD,
    ReadEvent.OUTPUT_OVER: ReadState.OUTPUT_FULL,
    ReadEvent.COSTLY_OVER: ReadState.MANY_WAITING,
    ReadEvent.ROOM_OVER: ReadState.NO_ROOM,
}
_ROWS: Final[dict[ReadState, dict[ReadEvent, ReadState]]] = {
    ReadState.READING: {ReadEvent.ONLY_COSTLY: ReadState.ASIDE, ReadEvent.LATE: ReadState.NEW, **_OBSTACLES},
    ReadState.ASIDE: {ReadEvent.BYTES: ReadState.READING, ReadEvent.SERVE: ReadState.READING},
    ReadState.NEW: {ReadEvent.TURN: ReadState.DECODING},
    ReadState.OLD: {ReadEvent.TURN: ReadState.DECODING},
    ReadState.DECODING: {ReadEvent.ALL_READ: ReadState.READING, **_OBSTACLES},
    ReadState.OUTPUT_FULL: {ReadEvent.FLUSHED: ReadState.OLD},
    ReadState.MANY_WAITING: {ReadEvent.HALF_SERVED: ReadState.OLD},
    ReadState.NO_ROOM: {ReadEvent.ROOM: ReadState.OLD},
    ReadState.HELD: {ReadEvent.RELEASE: ReadState.OLD},
    ReadState.STOPPED: {ReadEvent.BYTES: ReadState.STOPPED, ReadEvent.HOLD: ReadState.STOPPED},
}
_ANYWHERE: Final = {ReadEvent.HOLD: ReadState.HELD, ReadEvent.STOP: ReadState.STOPPED}

NEXT: Final = {
    (state, event): after
    for state, row in _ROWS.items()
    for event, after in (dict.fromkeys(FROM_OUTSIDE, state) | _ANYWHERE | row).items()
}
"""The state after an event. A pair that is not in it is a programming error."""
