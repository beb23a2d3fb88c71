"""LogEnd: what a broker reports while it does not know the end of its log.

After a start, the log of a replica may end with records that are confirmed only when other replicas have them
again (`Positions.is_end_known`). Until then clients that have read such records must not be moved back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from actors.broker.broker_settings import RAFT, BrokerSettings
from actors.host.figures import Figure, Kind
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused
from store.commitlog.confirm_policy import SYNC
from store.commitlog.positions import Positions
from store.common.logs import get_logger

_log = get_logger(__name__)

ValueT = TypeVar("ValueT")

_REMEDIES = {
    SYNC: "start {slaves} of its slaves, or restart the broker with replication: async to accept the log "
    "as it is",
    RAFT: "start a majority of the group; if it is lost for good, see `raymq replica recover-group`",
}


class LogEnd:
    """Tells whether the end of one broker's log is known, and why it is not."""

    def __init__(self, settings: BrokerSettings, positions: Positions) -> None:
        self._settings = settings
        self._positions = positions
        self._was_known = True

    @property
    def is_known(self) -> bool:
        """True if the ends of queues that can be read are those that consumers may have seen."""
        return self._positions.is_end_known

    @property
    def reason(self) -> str:
        """Why the end is not known, and the remedy; empty if it is known."""
        hidden_bytes = self._positions.hidden_bytes
        if not hidden_bytes:
            return ""
        remedy = _REMEDIES.get(self._settings.replication, "wait for the other replicas")
        return (
            f"the last {hidden_bytes:,} bytes of the log are not confirmed again since the start, so their "
            "messages are hidden and the ends of queues are not known: "
            + remedy.format(slaves=self._settings.in_sync_replicas - 1)
        )

    def refusal(self) -> Refused:
        """Return the refusal of a request that needs the ends of queues."""
        reason = self.reason or "the log has changed"
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{reason}; try again")

    def known(self, read: Callable[[], ValueT]) -> Callable[[], ValueT | None]:
        """Return a function that returns the result of `read`, or None while the end is not known."""
        return lambda: read() if self.is_known else None

    def watch(self) -> None:
        """Log when the end becomes unknown or known; to be called a few times per second."""
        if self.is_known is self._was_known:
            return
        self._was_known = self.is_known
        broker, positions = self._settings.broker_name, self._positions
        if self._was_known:
            _log.info("log_end_known", broker=broker, confirmed=positions.confirmed)
        else:
            _log.warning(
                "log_end_unknown", broker=broker, confirmed=positions.confirmed, end=positions.written,
                reason=self.reason,
            )  # fmt: skip

    def figures(self) -> Sequence[Figure]:
        """Return the figures of the hidden end of the log."""
        return (
            Figure(
                "hidden_bytes", Kind.GAUGE, "bytes", lambda: self._positions.hidden_bytes,
                "Bytes at the end of the log that are not confirmed again since the start.",
                metric="raymq_hidden_bytes",
            ),
            Figure("hidden_because", Kind.TEXT, "", lambda: self.reason, "Why the end of the log is hidden."),
        )  # fmt: skip
