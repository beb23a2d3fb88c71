"""Answers to senders wait for `confirmed`, and say what happened when it does not come."""

from __future__ import annotations

from collections.abc import Callable

from actors.broker.sending.acks import Acks, PendingAck
from actors.remoting.codes import ResponseCode
from store.store_errors import StoreError


class Answers(PendingAck):
    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[ResponseCode, str | None]] = []

    def answer(self, code: ResponseCode, remark: str | None) -> None:
        self.given.append((code, remark))


class StoreThatConfirmsLater:
    def __init__(self) -> None:
        self.callbacks: list[tuple[int, Callable[[StoreError | None], None]]] = []

    def on_confirmed(self, offset: int, callback: Callable[[StoreError | None], None]) -> None:
        self.callbacks.append((offset, callback))

    def confirm(self, error: StoreError | None = None) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for _, callback in callbacks:
            callback(error)


def test_the_answer_comes_with_the_confirmation(clock) -> None:
    store = StoreThatConfirmsLater()
    answers = Answers()
    acks = Acks(store, clock, timeout_ms=5000, may_wait=True)
    acks.when_confirmed(100, answers)
    assert len(acks) == 1
    assert answers.given == []
    store.confirm()
    assert answers.given == [(ResponseCode.SUCCESS, None)]
    assert len(acks) == 0


def test_a_failed_store_is_told_to_the_sender(clock) -> None:
    store = StoreThatConfirmsLater()
    answers = Answers()
    acks = Acks(store, clock, timeout_ms=5000, may_wait=True)
    acks.when_confirmed(100, answers)
    store.confirm(StoreError("fdatasync failed: Input/output error"))
    assert answers.given == [(ResponseCode.SYSTEM_ERROR, "fdatasync failed: Input/output error")]


def test_a_flush_that_takes_too_long_is_answered_once(clock) -> None:
    store = StoreThatConfirmsLater()
    answers = Answers()
    acks = Acks(store, clock, timeout_ms=5000, may_wait=True)
    acks.when_confirmed(100, answers)
    acks.sweep()
    clock.advance(4999)
    acks.sweep()
    assert answers.given == []
    clock.advance(1)
    acks.sweep()
    store.confirm()
    assert [code for code, _ in answers.given] == [ResponseCode.FLUSH_DISK_TIMEOUT]
