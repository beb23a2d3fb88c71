"""Which requests a follower of a Raft group forwards to the leader, and the request codes that it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from actors.broker.replication.raft import forwarding
from actors.broker.replication.raft.forwarding import FORWARDED, Forwarder
from actors.transport.chain import Chain
from actors.transport.client import RemotingClient
from actors.transport.connection import Connection
from actors.transport.request import OnSlave, RequestContext, RequestRow
from actors.transport.table import RequestTable
from actors.wire.codes import RequestCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Refused
from store.common.clock import SystemClock
from tests.actors.broker.replication.ha.test_slave_requests import FOR_ALL


class Spawned(RequestContext):
    """A request whose work is not begun before a test awaits it."""

    work_of_task: Coroutine[Any, Any, RemotingCommand | None] | None = None

    def spawn(self, work: Coroutine[Any, Any, RemotingCommand | None]) -> None:
        self.work_of_task = work


def forwarder_of(*, leads: Callable[[], bool] = lambda: False) -> Forwarder:
    """Return the step of a replica that has transferred no leadership."""
    return Forwarder(
        cast(RemotingClient, None), leads, lambda: "", lambda _: None, SystemClock(),
        serves_reads=lambda: True, handle=lambda _: RemotingCommand.response(),
    )  # fmt: skip


def request(code: int, body: bytes = b"", **ext: str) -> Spawned:
    row = RequestRow(code, lambda _: None, is_for_all=code in FOR_ALL)
    return Spawned(RemotingCommand(code, ext, body), None, cast(Connection, None), row, ())


def is_forwarded(code: int, *, leads: bool = False, **ext: str) -> bool:
    context = request(code, **ext)
    is_taken = forwarder_of(leads=lambda: leads)(context)
    if context.work_of_task is not None:
        context.work_of_task.close()
    return is_taken


@pytest.mark.parametrize(
    ("more", "count"), [({"body": bytes(2_000)}, 3), ({"bname": "x" * 2_000}, 3), ({}, 9)]
)
def test_requests_that_wait_for_a_leader_are_bounded(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], count: int
) -> None:
    monkeypatch.setattr(forwarding, "WAITING", replace(forwarding.WAITING, limit=10_000))
    leads = False
    forwarder = forwarder_of(leads=lambda: leads)
    forwarder.begin(60_000)
    waiting = [request(RequestCode.SEND_MESSAGE_V2, **more) for _ in range(count)]
    assert all(map(forwarder, waiting))
    with pytest.raises(Refused, match="exceeds the limit of 10,000: send again"):
        forwarder(request(RequestCode.SEND_MESSAGE_V2, **more))
    [use] = forwarder.bounds()
    assert 6_000 < use.read() <= 10_000
    leads = True  # so requests are handled here, which ends the wait
    for each in waiting:
        assert each.work_of_task is not None
        asyncio.run(each.work_of_task)
    assert use.read() == 0


@pytest.mark.parametrize("code", sorted(FOR_ALL))
def test_followers_forward_once_what_mqadmin_sends_to_all_replicas(code: int) -> None:
    assert is_forwarded(code)
    assert not is_forwarded(code, leads=True)
    assert not is_forwarded(code, **{FORWARDED: "true"})


@pytest.mark.parametrize("code", [RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.SEND_MESSAGE])
def test_followers_do_not_forward_other_requests(code: int) -> None:
    assert not is_forwarded(code)


def test_unknown_request_reaches_its_refusal_on_a_follower() -> None:
    assert Chain(RequestTable()).unknown.on_slave is OnSlave.SERVED
