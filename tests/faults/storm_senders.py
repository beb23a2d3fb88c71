"""Senders of the storm: ordinary, keyed, timer and transactional messages, with the result of each."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.client import (
    ClientError,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    SendResult,
    TransactionProducer,
)
from tests.checkers import Operation, Recorder
from tests.eventually import LIMIT_S, NEVER_S
from tests.faults.member import REQUEST_TIMEOUT_MS, queue_number

MAX_PAUSE_S = 0.1
MAX_DELAY_MS = 15_000
RECALLED_SHARE = 0.2
ATTEMPTS = 100
"""The client repeats a send whose response was lost: the message may be stored several times."""


@dataclass
class Sending:
    """What the senders share: they send until `is_over`, and respond to checks until `is_settled`."""

    nameserver: str
    topic: str
    recorder: Recorder
    seed: int
    is_over: threading.Event
    is_settled: threading.Event

    def values(self, name: str) -> Iterator[tuple[str, random.Random]]:
        """Yield the values to send, each after a pause, with the generator of random numbers."""
        rng, number = random.Random(f"{self.seed} {name}"), 0
        while not self.is_over.wait(rng.uniform(0, MAX_PAUSE_S)):
            number += 1
            yield f"{name}-{number}", rng

    def config(self, group: str) -> ProducerConfig:
        return ProducerConfig(
            nameservers=self.nameserver,
            group=group,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            send_timeout_ms=3 * REQUEST_TIMEOUT_MS,
            delivery_timeout_ms=int(LIMIT_S * 1000),
            heartbeat_ms=1000,
            sticky_broker_ms=int(NEVER_S * 1000),  # on a busy machine, a restart takes minutes
        )


def attempt(operation: Operation, send: Callable[[], SendResult]) -> SendResult | None:
    """Send; record an error as an unknown result, and return None then."""
    try:
        return send()
    except ClientError as error:
        if not error.retriable:
            raise
        operation.info(ATTEMPTS)
        return None


def acknowledge(operation: Operation, result: SendResult | None) -> None:
    if result is not None:
        queue = queue_number(result.queue.broker_name, result.queue.queue_id)
        operation.ok(queue, result.queue_offset, ATTEMPTS)


def send_plain(shared: Sending) -> None:
    with Producer(config=shared.config("plain")) as producer:
        for value, _ in shared.values("plain"):
            operation = shared.recorder.send("plain", shared.topic, value)
            result = attempt(operation, lambda value=value: producer.send(shared.topic, value))  # type: ignore[misc]
            acknowledge(operation, result)


def send_keyed(shared: Sending) -> None:
    with Producer(config=shared.config("keyed")) as producer:
        for value, rng in shared.values("keyed"):
            key = f"k{rng.randrange(9)}"
            operation = shared.recorder.send("keyed", shared.topic, value, key=key)
            result = attempt(
                operation,
                lambda value=value, key=key: producer.send(shared.topic, value, sharding_key=key),  # type: ignore[misc]
            )
            acknowledge(operation, result)


def send_timers(shared: Sending) -> None:
    """Send timer messages, and recall some; one whose recall succeeds must never be delivered."""
    to_recall: list[tuple[float, str, Operation]] = []
    with Producer(config=shared.config("timers")) as producer:
        for value, rng in shared.values("timers"):
            due_ms = time.time_ns() // 1_000_000 + rng.randint(1, MAX_DELAY_MS)
            operation = shared.recorder.send("timers", shared.topic, value, time_ms=due_ms)
            message = Message(shared.topic, value.encode(), deliver_at_ms=due_ms)
            # To one queue: a copy in another broker could not be recalled by the handle.
            result = attempt(
                operation,
                lambda message=message, value=value: producer.send(message, sharding_key=value),  # type: ignore[misc]
            )
            if result is None:
                continue
            if result.recall_handle and rng.random() < RECALLED_SHARE:
                at_s = time.monotonic() + rng.uniform(0, MAX_DELAY_MS / 1000)
                to_recall.append((at_s, result.recall_handle, operation))
            else:
                operation.ok(attempts=ATTEMPTS)
            ready = [each for each in to_recall if each[0] <= time.monotonic()]
            to_recall = [each for each in to_recall if each not in ready]
            for _, handle, recalled in ready:
                try:
                    producer.recall(shared.topic, handle)
                except ClientError:  # delivered already, or the broker is down
                    recalled.info(ATTEMPTS)
                else:
                    recalled.fail()
    for _, _, operation in to_recall:
        operation.ok(attempts=ATTEMPTS)


def send_transactions(shared: Sending) -> None:
    """Send messages of transactions; half of the outcomes reach the broker only by a check."""
    commit, rollback = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
    unknown = LocalTransactionState.UNKNOWN
    outcomes: dict[str, LocalTransactionState] = {}

    def check(message: MessageExt) -> LocalTransactionState:
        return outcomes.get(message.body.decode(), unknown)

    config = shared.config("transactions")
    with TransactionProducer(check_listener=check, topics=[shared.topic], config=config) as producer:
        for value, rng in shared.values("transactions"):
            outcome, is_checked = rng.choice((commit, rollback)), rng.random() < 0.5

            def execute(
                _: Message,
                value: str = value,
                outcome: LocalTransactionState = outcome,
                is_checked: bool = is_checked,
            ) -> LocalTransactionState:
                outcomes[value] = outcome
                return unknown if is_checked else outcome

            operation = shared.recorder.send("transactions", shared.topic, value)
            try:
                producer.send_in_transaction(Message(shared.topic, value.encode()), execute)
            except ClientError as error:
                if not error.retriable:
                    raise
            # One that was not executed is rolled back, if the broker has stored it at all.
            if outcomes.setdefault(value, rollback) is commit:
                operation.ok(attempts=ATTEMPTS)
            else:
                operation.fail()
        assert shared.is_settled.wait(NEVER_S)


@contextmanager
def sending(nameserver: str, topic: str, recorder: Recorder, seed: int) -> Iterator[threading.Event]:
    """Send in threads until the yielded event is set. At the end, raise the first error of a thread."""
    shared = Sending(nameserver, topic, recorder, seed, threading.Event(), threading.Event())
    with ThreadPoolExecutor() as pool:
        senders = [
            pool.submit(send, shared) for send in (send_plain, send_keyed, send_timers, send_transactions)
        ]
        try:
            yield shared.is_over
        finally:
            shared.is_over.set()
            shared.is_settled.set()
        for sender in senders:
            sender.result()
