"""Sending one request to one queue, and what is tried when that fails.

    unkeyed    any writable queue in turn; after a failure at most `retry_times_when_send_failed` others,
               on another broker where there is one; which brokers are passed over, `faults` says
    pinned     its own queue only (sharding key, selector, given queue), until the deadline: a broker that
               restarts is waited for, because another queue would break the order of the key

The first attempt is a callback, without a task: that is the path of nearly every message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import RemotingError
from cluster.client.config import ProducerConfig
from cluster.client.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    DeadlineExceeded,
    PermissionDenied,
    SendFailed,
    TopicNotFound,
    refused,
)
from cluster.client.producer.direct import DirectConnections
from cluster.client.producer.faults import MQFaultStrategy
from cluster.client.producer.outbound import Outbound
from cluster.client.results import STATUS_OF_CODE, SendResult
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.topic_route import TopicRoute
from store.message.message_queue import MessageQueue

Choose = Callable[[TopicRoute], MessageQueue]


class Outcome(Protocol):
    """Where a send's result goes: exactly one of both is called, once, on the client's loop."""

    def resolve(self, value: SendResult, /) -> None:
        """Take the result."""

    def reject(self, error: BaseException, /) -> None:
        """Take the error."""


class Unsent(NamedTuple):
    """A first attempt that did not succeed: where it went and what came of it, as far as it got."""

    queue: MessageQueue | None
    error: ClientError | None


def is_curable(error: ClientError) -> bool:
    """Whether another attempt may cure it: RocketMQ's producers retry an unknown topic and a missing
    permission too.
    """
    if isinstance(error, TopicNotFound) and not error.address:
        return False  # the nameservers' word, not one broker's
    return error.retriable


class Sender:
    """Sends requests of one producer. Lives on its instance's loop."""

    def __init__(self, instance: ClientInstance, config: ProducerConfig, strategy: MQFaultStrategy) -> None:
        self._instance = instance
        self._config = config
        self._strategy = strategy
        self._pending = 0
        self._idle: asyncio.Future[None] | None = None

    async def flush(self) -> None:
        """Wait until no send is under way."""
        while self._pending:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def _settle(self, outcome: Outcome, result: SendResult | None, error: BaseException | None) -> None:
        self._pending -= 1
        if result is not None:
            outcome.resolve(result)
        else:
            outcome.reject(error or ClientClosed("the producer is closed"))
        if not self._pending and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    def start(self, outbound: Outbound, choose: Choose | None, timeout_ms: int, outcome: Outcome) -> None:
        """Send `outbound` to a queue in turn, or to the one that `choose` gives (pinned)."""
        instance = self._instance
        self._pending += 1
        if instance.is_closed:
            self._settle(outcome, None, ClientClosed("the producer is closed"))
            return
        try:
            route = instance.routes.peek(outbound.topic)
            if route is None:
                self._go_slow(outbound, choose, timeout_ms, outcome, None, None)
                return
            queue = self.in_turn(route) if choose is None else choose(route)
            address = instance.master_of(queue.topic, queue.broker_name)
            self._attempt(outbound, choose, timeout_ms, outcome, queue, address)
        except BrokerUnreachable as error:
            self._go_slow(outbound, choose, timeout_ms, outcome, None, error)
        except Exception as error:  # noqa: BLE001 -- a selector or hook of the user's: told where it is awaited
            self._settle(outcome, None, error)

    def send_directly(
        self,
        outbound: Outbound,
        choose: Choose | None,
        timeout_ms: int,
        connections: DirectConnections,
    ) -> SendResult | Unsent:
        """One attempt in the caller's thread, or what `start_after` needs to carry on. Raises
        BrokerRefused.
        """
        instance = self._instance
        route = instance.routes.peek(outbound.topic)
        if route is None or instance.is_closed:
            return Unsent(None, None)
        queue = None
        try:
            queue = self.in_turn(route) if choose is None else choose(route)
            address = instance.master_of(queue.topic, queue.broker_name)
            started_ms = self._started_ms()
            answer = connections.exchange(address, outbound.command(queue.queue_id), timeout_ms)
            result = self._result(answer, outbound, queue, address)
            self._note(queue, started_ms, None)
        except RemotingError as error:
            translated = instance.translated(error)
            self._note(queue, 0, translated)
            return Unsent(queue, translated)
        except ClientError as error:
            self._note(queue, 0, error)
            if not is_curable(error):
                raise
            return Unsent(queue, error)
        return result

    def _started_ms(self) -> int:
        return self._strategy.now_ms() if self._strategy.is_enabled else 0

    def _note(self, queue: MessageQueue | None, started_ms: int, error: ClientError | None) -> None:
        """Have the next choices take account of an attempt."""
        if not self._strategy.is_enabled or queue is None:
            return
        if error is None:
            self._strategy.took(queue.broker_name, started_ms)
        else:
            self._strategy.failed(queue.broker_name, error)

    def start_after(
        self, outbound: Outbound, choose: Choose | None, left_ms: int, unsent: Unsent, outcome: Outcome
    ) -> None:
        """Carry on where `send_directly` failed."""
        self._pending += 1
        if self._instance.is_closed:
            self._settle(outcome, None, ClientClosed("the producer is closed"))
        else:
            self._go_slow(outbound, choose, left_ms, outcome, unsent.queue, unsent.error)

    def _attempt(
        self,
        outbound: Outbound,
        choose: Choose | None,
        timeout_ms: int,
        outcome: Outcome,
        queue: MessageQueue,
        address: str,
    ) -> None:
        started_ms = self._instance.now_ms()

        def answered(answer: RemotingCommand | RemotingError) -> None:
            try:
                result = self._result(answer, outbound, queue, address)
            except ClientError as error:
                self._note(queue, started_ms, error)
                left_ms = timeout_ms - (self._instance.now_ms() - started_ms)
                self._go_slow(outbound, choose, left_ms, outcome, queue, error)
            else:
                self._note(queue, started_ms, None)
                self._settle(outcome, result, None)

        self._instance.remoting.invoke_callback(
            address, outbound.command(queue.queue_id), timeout_ms, answered
        )

    def _go_slow(
        self,
        outbound: Outbound,
        choose: Choose | None,
        left_ms: int,
        outcome: Outcome,
        queue: MessageQueue | None,
        error: ClientError | None,
    ) -> None:
        """Carry on in a task: the first attempt failed, or its route is not known yet."""
        if isinstance(error, BrokerRefused) and not error.retriable:
            self._settle(outcome, None, error)
            return
        attempts = [] if error is None else [error]
        if choose is None:
            work = self._send_anywhere(outbound, left_ms, queue, attempts)
        else:
            work = self._send_pinned(outbound, choose, left_ms, attempts)
        task = self._instance.spawn(work, "send", is_awaited=True)

        def ended(done: asyncio.Task[SendResult]) -> None:
            if done.cancelled():
                failure: BaseException | None = ClientClosed(
                    "the producer was closed before the message was acknowledged"
                )
            else:
                failure = done.exception()
            self._settle(outcome, None if failure else done.result(), failure)

        task.add_done_callback(ended)

    async def _send_anywhere(
        self, outbound: Outbound, left_ms: int, queue: MessageQueue | None, attempts: list[ClientError]
    ) -> SendResult:
        deadline_ms = self._instance.now_ms() + left_ms
        if attempts:
            await self._refresh(outbound.topic)
        while True:
            left_ms = deadline_ms - self._instance.now_ms()
            if len(attempts) > self._config.retry_times_when_send_failed or (attempts and left_ms <= 0):
                raise _failed(outbound, attempts) from attempts[-1]
            try:
                route = await self._instance.routes.get(outbound.topic)
                queue = self._strategy.choose(self._writable(route), queue.broker_name if queue else None)
                return await self._send(outbound, queue, left_ms)
            except ClientError as error:
                await self._keep(error, outbound.topic, attempts)

    async def _send_pinned(
        self, outbound: Outbound, choose: Choose, left_ms: int, attempts: list[ClientError]
    ) -> SendResult:
        deadline_ms = self._instance.now_ms() + left_ms
        backoff = Backoff()
        while True:
            left_ms = deadline_ms - self._instance.now_ms()
            if attempts:
                if left_ms <= 0:
                    raise _failed(outbound, attempts) from attempts[-1]
                await asyncio.sleep(min(backoff.next_ms(), left_ms) / 1000)
                await self._refresh(outbound.topic)
            try:
                queue = choose(await self._instance.routes.get(outbound.topic))
                return await self._send(outbound, queue, max(left_ms, 1))
            except ClientError as error:
                await self._keep(error, outbound.topic, attempts)

    async def _send(self, outbound: Outbound, queue: MessageQueue, timeout_ms: int) -> SendResult:
        started_ms = self._started_ms()
        try:
            address = self._instance.master_of(queue.topic, queue.broker_name)
            answer = await self._instance.ask(address, outbound.command(queue.queue_id), timeout_ms)
            result = self._result(answer, outbound, queue, address)
        except ClientError as error:
            self._note(queue, started_ms, error)
            raise
        self._note(queue, started_ms, None)
        return result

    async def _keep(self, error: ClientError, topic: str, attempts: list[ClientError]) -> None:
        """Keep a failure that another attempt may cure; raise any other."""
        if not is_curable(error):
            raise error
        attempts.append(error)
        await self._refresh(topic)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._instance.routes.refresh(topic)
        except ClientError:
            return  # the old route still stands; the next attempt says what is wrong with it

    def _result(
        self, answer: RemotingCommand | RemotingError, outbound: Outbound, queue: MessageQueue, address: str
    ) -> SendResult:
        if isinstance(answer, RemotingError):
            raise self._instance.translated(answer) from answer
        status = STATUS_OF_CODE.get(answer.code)
        if status is None:
            raise refused(answer.code, answer.remark, address)
        ext = answer.ext
        if (queue_id := int(ext["queueId"])) != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return SendResult(
            status,
            outbound.msg_id,
            queue,
            int(ext["queueOffset"]),
            ext.get("msgId", ""),
            ext.get("transactionId", ""),
        )

    def in_turn(self, route: TopicRoute) -> MessageQueue:
        """The next writable queue. Raises PermissionDenied when there is none."""
        return self._strategy.choose(self._writable(route))

    @staticmethod
    def _writable(route: TopicRoute) -> tuple[MessageQueue, ...]:
        if not route.writable:
            raise PermissionDenied(
                ResponseCode.NO_PERMISSION, f"topic {route.topic!r} has no writable queue now", "", True
            )
        return route.writable


def _failed(outbound: Outbound, attempts: list[ClientError]) -> ClientError:
    last = attempts[-1]
    if isinstance(last, BrokerRefused | DeadlineExceeded) and all(
        type(error) is type(last) for error in attempts
    ):
        return last
    return SendFailed(outbound.topic, attempts, last.retriable)
