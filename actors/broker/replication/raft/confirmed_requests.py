"""ConfirmedRequests: requests that change tables are answered when a majority has the change on disk."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final

from actors.broker.replication.held_acks import Deferred, HeldAcks
from actors.broker.replication.raft.meta_log import MetaLog
from actors.broker.replication.table_entries import DRAIN, LOCK, MODE, OFFSET, POLICY, RESET, USER
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


class ConfirmedRequests:
    """The last chain step: handles the requests of `CONFIRMED` itself, and those of `HeldAcks`."""

    def __init__(self, meta: MetaLog, acks: HeldAcks) -> None:
        self._meta = meta
        self._acks = acks

    def __call__(self, context: RequestContext) -> bool:
        """Handle the request if it changes tables."""
        kinds = CONFIRMED.get(context.row.code)
        if kinds is None:
            return self._acks(context)
        Deferred(context, partial(self._reply_when_confirmed, kinds)).handle()
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
