"""TimerRequests: GET_TIMER_CHECK_POINT and GET_TIMER_METRICS, by which slaves of RocketMQ follow a timer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson

from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.wire.codes import RequestCode, ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from actors.wire.targets import Action, on_cluster
from store.timer.timer_checkpoint import TimerCheckpoint

Checkpoint = Callable[[], TimerCheckpoint]
Metrics = Callable[[], dict[str, Any]]


class TimerRequests:
    """Request handler for GET_TIMER_CHECK_POINT and GET_TIMER_METRICS."""

    def __init__(self, checkpoint: Checkpoint | None, metrics: Metrics | None) -> None:
        """Create the handler.

        Args:
            checkpoint: returns the progress that was saved last; None if the broker has no timer.
            metrics: returns the content of `config/timermetrics`; None if the broker has no timer.
        """
        self._checkpoint = checkpoint
        self._metrics = metrics

    def rows(self) -> Iterable[RequestRow]:
        """Return the entries of the request table that this class handles."""
        row = partial(RequestRow, on_slave=OnSlave.SERVED)
        get = on_cluster(Action.GET)
        return (
            row(RequestCode.GET_TIMER_CHECK_POINT, self.checkpoint, None, get),
            row(RequestCode.GET_TIMER_METRICS, self.metrics, None, get),
        )

    def checkpoint(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_TIMER_CHECK_POINT: return the 56 bytes of `config/timercheck`."""
        if self._checkpoint is None:
            raise _without_timer("The checkpoint is null")
        return RemotingCommand.response(body=self._checkpoint().encode())

    def metrics(self, context: RequestContext) -> RemotingCommand:
        """Handle GET_TIMER_METRICS: return the pending timer messages by topic, as JSON."""
        if self._metrics is None:
            raise _without_timer("The timer message store is null")
        return RemotingCommand.response(body=orjson.dumps(self._metrics()))


def _without_timer(cause: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"{cause}: set timer_wheel_enable to true on the broker")
