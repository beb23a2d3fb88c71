"""Responses to sends wait for confirmation; an error or a time-out becomes the response."""

from __future__ import annotations

from collections.abc import Callable

from actors.broker.core.sending.acks import AckLimit, Acks, PendingAck
from actors.wire.codes import ResponseCode
from store.store_errors import StoreError

DISK = AckLimit(5000, lambda: 0, ResponseCode.FLUSH_DISK_TIMEOUT, "the disk is slow")


class Responses(PendingAck):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[ResponseCode, str | None]] = []

    def respond(self, code: ResponseCode, remark: str | None) -> None:
        self.sent.append((code, remark))


class StoreConfirmingLater:
    def __init__(self) -> None:
        self.callbacks: list[tuple[int, Callable[[StoreError | None], None]]] = []

    def on_confirmed(
        self, offset: int, callback: Callable[[StoreError | None], None], messages: int = 1
    ) -> None:
        self.callbacks.append((offset, callback))

    def confirm(self, error: StoreError | None = None) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for _, callback in callbacks:
            callback(error)


def test_response_is_sent_at_confirmation(clock) -> None:
    store = StoreConfirmingLater()
    responses = Responses()
    acks = Acks(store, clock, (DISK,))
    acks.when_confirmed(100, responses)
    assert len(acks) == 1
    assert responses.sent == []
    store.confirm()
    assert responses.sent == [(ResponseCode.SUCCESS, None)]
    assert len(acks) == 0


def test_store_error_becomes_the_response(clock) -> None:
    store = StoreConfirmingLater()
    responses = Responses()
    acks = Acks(store, clock, (DISK,))
    acks.when_confirmed(100, responses)
    store.confirm(StoreError("fdatasync failed: Input/output error"))
    assert responses.sent == [(ResponseCode.SYSTEM_ERROR, "fdatasync failed: Input/output error")]


def test_slow_flush_gets_flush_disk_timeout_once(clock) -> None:
    store = StoreConfirmingLater()
    responses = Responses()
    acks = Acks(store, clock, (DISK,))
    acks.when_confirmed(100, responses)
    acks.sweep()
    clock.advance(4999)
    acks.sweep()
    assert responses.sent == []
    clock.advance(1)
    acks.sweep()
    store.confirm()
    assert [code for code, _ in responses.sent] == [ResponseCode.FLUSH_DISK_TIMEOUT]


def test_time_out_names_the_position_that_is_late(clock) -> None:
    """The slaves have the shorter limit; their code replaces that of the disk, as in RocketMQ."""
    positions = {"disk": 100, "slaves": 100}
    limits = (
        AckLimit(3000, lambda: positions["slaves"], ResponseCode.FLUSH_SLAVE_TIMEOUT, "slaves"),
        AckLimit(5000, lambda: positions["disk"], ResponseCode.FLUSH_DISK_TIMEOUT, "disk"),
    )
    store = StoreConfirmingLater()
    acks = Acks(store, clock, limits)

    def late(disk: int, slaves: int, after_ms: int) -> list[tuple[ResponseCode, str | None]]:
        positions.update(disk=disk, slaves=slaves)
        responses = Responses()
        acks.when_confirmed(200, responses)
        acks.sweep()
        clock.advance(after_ms)
        acks.sweep()
        sent = responses.sent[:]
        store.confirm()
        acks.sweep()
        return sent

    assert late(200, 199, 2999) == []
    assert late(200, 199, 3000) == [(ResponseCode.FLUSH_SLAVE_TIMEOUT, "slaves")]
    assert late(199, 199, 3000) == [(ResponseCode.FLUSH_SLAVE_TIMEOUT, "slaves")]
    assert late(199, 200, 4999) == []
    assert late(199, 200, 5000) == [(ResponseCode.FLUSH_DISK_TIMEOUT, "disk")]
    assert late(199, 199, 5000) == [(ResponseCode.FLUSH_SLAVE_TIMEOUT, "slaves")]
