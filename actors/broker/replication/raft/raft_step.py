"""What a replica of a Raft group serves: a chain step, and an interceptor of special messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from actors.broker.broker_settings import BrokerSettings
from actors.broker.replication.raft.driver import RaftDriver
from actors.broker.sending.interceptors import SendDraft
from actors.remoting.codes import RayMQRequestCode, RequestCode, ResponseCode, request_name
from actors.remoting.remoting_errors import Refused
from actors.remoting.request import OnSlave, RequestContext
from store.message.properties import MessageConst
from store.message.sys_flag import TRANSACTION_MASK

_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RayMQRequestCode.SEND_RUNS,
        RayMQRequestCode.APPEND_BATCH,
    }
)
_DEFINITIONS: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    }
)
"""Served by each replica for itself: they are not replicated yet."""


class RaftStep:
    """Refuses what a replica does not serve, or only as the leader."""

    def __init__(
        self, settings: BrokerSettings, driver: RaftDriver, leader_address: Callable[[], str]
    ) -> None:
        """Create the step; `leader_address` returns the address of the leader, empty if it is not known."""
        self._settings = settings
        self._driver = driver
        self._leader_address = leader_address

    def __call__(self, context: RequestContext) -> None:
        """Raise Refused if this replica does not serve the request now."""
        row, driver = context.row, self._driver
        if row.on_slave is OnSlave.SERVED:
            return
        if driver.failure:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, driver.failure)
        if row.code in _SENDS or row.on_slave is OnSlave.OFFSETS:
            if not driver.accepts_sends:
                self._refuse(row.code)
        elif row.on_slave is OnSlave.READ:
            if not (driver.is_leader or self._settings.slave_read_enable):
                self._refuse(row.code)
        elif row.code not in _DEFINITIONS:
            raise Refused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"{request_name(row.code)} is not supported yet with replication: raft",
            )

    def _refuse(self, code: int) -> None:
        if self._driver.is_leader:
            reason = "the leader has not confirmed the first record of its term yet: try again"
        else:
            leader = self._leader_address() or "not known yet"
            reason = f"replica {self._settings.replica} does not lead its group; the leader is {leader}"
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{request_name(code)} is refused: {reason}")


class SpecialMessages:
    """Refuses messages of transactions and delayed ones: their progress is not replicated yet."""

    property_names = (
        MessageConst.DELAY,
        MessageConst.TIMER_DELAY_SEC,
        MessageConst.TIMER_DELAY_MS,
        MessageConst.TIMER_DELIVER_MS,
        MessageConst.TRANSACTION_PREPARED,
    )

    def before_append(self, draft: SendDraft) -> None:
        """Raise Refused for a message that the broker would keep back."""
        if draft.record.sys_flag & TRANSACTION_MASK:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"sysFlag {draft.record.sys_flag} marks a transaction, which is not supported yet with "
                "replication: raft",
            )
        properties = f"\x02{draft.properties}"
        for name in self.property_names:
            if f"\x02{name}\x01" in properties:
                raise Refused(
                    ResponseCode.MESSAGE_ILLEGAL,
                    f"a message with property {name} is not supported yet with replication: raft",
                )
