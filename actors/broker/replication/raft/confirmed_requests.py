"""ConfirmedRequests: requests that change tables are answered when a majority has the change on disk."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from actors.broker.replication.raft.held_acks import HeldAcks
from actors.broker.replication.raft.meta_log import MetaLog
from actors.broker.replication.raft.table_kinds import DRAIN, LOCK, MODE, OFFSET, POLICY, RESET, USER
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import RequestContext
from store.store_errors import StoreError

CONFIRMED: Final[dict[int, Collection[str]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: (MODE,),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: (MODE,),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (MODE,),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (MODE,),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (MODE, OFFSET),
    RequestCode.SET_MESSAGE_REQUEST_MODE: (MODE,),
    RequestCode.LOCK_BATCH_MQ: (LOCK,),
    RequestCode.UNLOCK_BATCH_MQ: (LOCK,),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (OFFSET, RESET),
    RequestCode.CLONE_GROUP_OFFSET: (OFFSET,),
    RayMQRequestCode.DRAIN_BROKER: (DRAIN,),
    RequestCode.AUTH_CREATE_USER: (USER, POLICY),
    RequestCode.AUTH_UPDATE_USER: (USER, POLICY),
    RequestCode.AUTH_DELETE_USER: (USER, POLICY),
    RequestCode.AUTH_CREATE_ACL: (POLICY,),
    RequestCode.AUTH_UPDATE_ACL: (POLICY,),
    RequestCode.AUTH_DELETE_ACL: (POLICY,),
}
"""The requests, and the tables that they change beside topics and groups, which are logged at once."""


ACKS: Final = frozenset({RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE})
"""The requests whose changes are logged together at the end of the turn."""


class _Confirmed(RequestContext):
    """A request whose response waits until its changes are confirmed."""

    __slots__ = ("_kinds", "_meta", "_request")

    def __init__(self, request: RequestContext, meta: MetaLog, kinds: Collection[str]) -> None:
        super().__init__(request.command, request.header, request.connection, request.row, ())
        self._request = request
        self._meta = meta
        self._kinds = kinds

    def reply(self, response: RemotingCommand) -> None:
        """Send the response when the changes are confirmed; else refuse the request: it is to be repeated."""

        def end(error: StoreError | None) -> None:
            if error is None:
                self._request.reply(response)
            else:
                self._request.refuse(Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))

        self._meta.when_confirmed(self._kinds, end)


class ConfirmedRequests:
    """The last chain step: handles the requests of `CONFIRMED` and `ACKS` itself."""

    def __init__(self, meta: MetaLog, acks: HeldAcks) -> None:
        self._meta = meta
        self._acks = acks

    def __call__(self, context: RequestContext) -> bool:
        """Handle the request if it changes tables."""
        if context.row.code not in CONFIRMED and context.row.code not in ACKS:
            return False
        self.handle(context)
        return True

    def handle(self, context: RequestContext) -> RemotingCommand | None:
        """Handle a request; return the response, or None if it is sent later."""
        kinds = CONFIRMED.get(context.row.code)
        if kinds is None:
            response = context.row.handler(context)
            if response is None or context.row.code not in ACKS:
                return response
            self._acks.hold(context, response)
            return None
        confirmed = _Confirmed(context, self._meta, kinds)
        response = context.row.handler(confirmed)
        if response is not None:
            confirmed.reply(response)
        return None
