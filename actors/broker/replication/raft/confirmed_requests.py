"""ConfirmedRequests: requests that change tables are answered when a majority has the change on disk."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from actors.broker.replication.held_acks import Deferred, HeldAcks
from actors.broker.replication.raft.meta_log import MetaLog
from actors.transport.request import RequestContext
from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from store.store_errors import StoreError


class ConfirmedRequests:
    """The last chain step: handles the requests that have `changes` itself, and those of `HeldAcks`."""

    def __init__(self, meta: MetaLog, acks: HeldAcks) -> None:
        self._meta = meta
        self._acks = acks

    def __call__(self, context: RequestContext) -> bool:
        """Handle the request if it changes tables."""
        if not context.row.changes:
            return self._acks(context)
        Deferred(context, partial(self._reply_when_confirmed, context.row.changes)).handle()
        return True

    def handle(self, context: RequestContext) -> RemotingCommand | None:
        """Handle a request; return the response, or None if it is sent later."""
        return None if self(context) else context.row.handler(context)

    def _reply_when_confirmed(
        self, kinds: Collection[str], request: RequestContext, response: RemotingCommand
    ) -> None:
        """Send the response when the changes are confirmed; else refuse the request: it is to be repeated."""

        def end(error: StoreError | None) -> None:
            if error is None:
                request.reply(response)
            else:
                request.refuse(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))

        self._meta.when_confirmed(kinds, end)
