"""Which requests a follower of a Raft group forwards to the leader, and the request codes that it refuses."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, cast

import pytest

from actors.broker.replication.raft.forwarding import FORWARDED, TO_ALL_REPLICAS, Forwarder
from actors.remoting.chain import Chain
from actors.remoting.client import RemotingClient
from actors.remoting.codes import RequestCode
from actors.remoting.command import RemotingCommand
from actors.remoting.connection import Connection
from actors.remoting.request import OnSlave, RequestContext, RequestRow
from actors.remoting.table import RequestTable
from store.clock import SystemClock


class Spawned(RequestContext):
    """A request whose work is not done."""

    def spawn(self, work: Coroutine[Any, Any, RemotingCommand | None]) -> None:
        work.close()


def is_forwarded(code: int, *, leads: bool = False, **ext: str) -> bool:
    """Return True if a replica that has transferred no leadership forwards a request."""
    forwarder = Forwarder(
        cast(RemotingClient, None), lambda: leads, lambda: "", lambda _: False, SystemClock(),
        serves_reads=lambda: True, handle=lambda _: None,
    )  # fmt: skip
    row = RequestRow(code, lambda _: None)
    context = Spawned(RemotingCommand(code, ext), None, cast(Connection, None), row, ())
    return forwarder(context)


@pytest.mark.parametrize("code", sorted(TO_ALL_REPLICAS))
def test_followers_forward_once_what_mqadmin_sends_to_all_replicas(code: int) -> None:
    assert is_forwarded(code)
    assert not is_forwarded(code, leads=True)
    assert not is_forwarded(code, **{FORWARDED: "true"})


@pytest.mark.parametrize("code", [RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.SEND_MESSAGE])
def test_followers_do_not_forward_other_requests(code: int) -> None:
    assert not is_forwarded(code)


def test_unknown_request_reaches_its_refusal_on_a_follower() -> None:
    assert Chain(RequestTable()).unknown.on_slave is OnSlave.SERVED
