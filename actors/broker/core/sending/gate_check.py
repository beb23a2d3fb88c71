"""Requests that send are refused while the store accepts no messages, before they have any effect."""

from __future__ import annotations

from dataclasses import replace

from actors.broker.core.sending.responses import not_stored
from actors.transport.request import Cost, RequestContext, RequestRow
from actors.wire.command import RemotingCommand
from store.store_errors import StoreError
from store.writing.send_gate import SendGate


def with_gate_check(row: RequestRow, gate: SendGate) -> RequestRow:
    """Return the row; if it sends, its handler raises Refused while the gate is closed."""
    if row.cost is not Cost.SEND:
        return row
    handler = row.handler

    def handle(context: RequestContext) -> RemotingCommand | None:
        if not gate.is_open:
            try:
                gate.check()
            except StoreError as error:
                raise not_stored(error) from error
        return handler(context)

    return replace(row, handler=handle)
