"""Sender: sends requests of one producer, each until it is stored, has failed for good, or its time is over.

    choose a queue ──→ send ──→ stored ─────────────────────────→ finish with the result
      ↑                 │
      │                 ├─ failed for good (message illegal, …) ─→ finish with the error
      │                 └─ curable (lost, timed out, busy, …)
      │                        ├─ no attempt or no time is left ─→ finish with SendFailed, or the error
      └── refresh the route ←──┘

    unkeyed   the queue is any writable one in turn, after a failure on another broker if there is one (see
              `faults`); at most `retry_times_when_send_failed` more attempts
    pinned    the queue is always the same (sharding key, selector, given queue); attempts back off until the
              deadline: a broker that restarts is waited for, as another queue would break the key's order

The first attempt needs no task: it is a callback on the loop (`start`), or one blocking exchange in the
caller's own thread (`send_directly`). Further attempts run in a task of the loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from actors.remoting.codes import ResponseCode
from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import RemotingError
from cluster.client.errors import (
    BrokerRefused,
    ClientClosed,
    ClientError,
    DeadlineExceeded,
    PermissionDenied,
    SendFailed,
    TopicNotFound,
    refused,
)
from cluster.client.hooks import SendContext
from cluster.client.producer.direct import DirectConnections
from cluster.client.producer.faults import MQFaultStrategy
from cluster.client.producer.outbound import Outbound
from cluster.client.producer.send_hooks import SendHooks
from cluster.client.results import STATUS_OF_CODE, SendResult
from cluster.client.transport.backoff import Backoff
from cluster.client.transport.instance import ClientInstance
from cluster.client.transport.topic_route import TopicRoute
from store.message.message_queue import MessageQueue

Choose = Callable[[TopicRoute], MessageQueue]
SendFuture = asyncio.Future[SendResult] | concurrent.futures.Future[SendResult]


def is_retriable(error: ClientError) -> bool:
    """Return True if another attempt may succeed: as RocketMQ's producers do, also after an unknown topic and
    a missing permission.
    """
    if isinstance(error, TopicNotFound) and not error.address:
        return False  # the response of the nameservers, not of one broker
    return error.retriable


@dataclass(slots=True, eq=False)
class Send:
    """One request under way. `choose` returns the queue of a pinned one; `queue` is the last attempt's."""

    outbound: Outbound
    choose: Choose | None
    timeout_ms: int
    deadline_ms: int
    context: SendContext | None = None
    queue: MessageQueue | None = None
    attempt_began_ms: int = 0
    failures: list[ClientError] = field(default_factory=list)

    def add_failure(self, error: ClientError) -> None:
        """Keep a failure that another attempt may cure; raise any other."""
        if not is_retriable(error):
            raise error
        self.failures.append(error)

    def error(self) -> ClientError:
        """Return the error of a send whose attempts all failed."""
        last = self.failures[-1]
        if isinstance(last, BrokerRefused | DeadlineExceeded) and all(
            type(error) is type(last) for error in self.failures
        ):
            return last
        return SendFailed(self.outbound.topic, self.failures, last.retriable)


class Sender:
    """Sends requests of one producer. Lives on its instance's loop; `send_directly` is for any thread."""

    def __init__(
        self, instance: ClientInstance, strategy: MQFaultStrategy, hooks: SendHooks, retry_times: int
    ) -> None:
        self._instance = instance
        self._strategy = strategy
        self._hooks = hooks
        self._retry_times = retry_times
        self._pending = 0
        self._idle: asyncio.Future[None] | None = None

    async def flush(self) -> None:
        """Wait until no send is under way."""
        while self._pending:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def send_directly(self, send: Send, connections: DirectConnections) -> SendResult | None:
        """Make the first attempt in the caller's thread; return None if `start` must carry on."""
        try:
            result = self._attempt_directly(send, connections)
        except Exception as error:
            self._hooks.after(send.context, None, error)
            raise
        if result is not None:
            self._hooks.after(send.context, result)
        return result

    def start(self, send: Send, future: SendFuture) -> None:
        """Send until `future` has the result or the error, on the loop."""
        self._pending += 1
        route = self._instance.routes.peek(send.outbound.topic)
        if self._instance.is_closed:
            self._finish(send, future, ClientClosed("the producer is closed"))
        elif route is None or send.failures:
            self._retry(send, future)
        else:
            self._attempt_by_callback(send, future, route)

    async def oneway(self, send: Send) -> None:
        """Send without a response."""
        try:
            address = self._take_queue(send, await self._instance.routes.get(send.outbound.topic))
            self._instance.remoting.oneway(address, _command(send))
        except Exception as error:
            self._hooks.after(send.context, None, error)
            raise
        self._hooks.after(send.context)

    # ---- attempts ------------------------------------------------------------------------------------------

    def _attempt_directly(self, send: Send, connections: DirectConnections) -> SendResult | None:
        route = self._instance.routes.peek(send.outbound.topic)
        if route is None or self._instance.is_closed:
            return None
        answer: RemotingCommand | RemotingError
        try:
            address = self._take_queue(send, route)
            try:
                answer = connections.exchange(address, _command(send), send.timeout_ms)
            except RemotingError as error:
                answer = error
            return self._result(send, address, answer)
        except ClientError as error:
            send.add_failure(error)
            return None

    def _attempt_by_callback(self, send: Send, future: SendFuture, route: TopicRoute) -> None:
        try:
            address = self._take_queue(send, route)
            answered = partial(self._answered, send, future, address)
            self._instance.remoting.invoke_callback(address, _command(send), send.timeout_ms, answered)
        except Exception as error:  # noqa: BLE001 -- of a selector or hook too: it reaches the caller
            self._failed(send, future, error)

    def _answered(
        self, send: Send, future: SendFuture, address: str, answer: RemotingCommand | RemotingError
    ) -> None:
        try:
            result = self._result(send, address, answer)
        except Exception as error:  # noqa: BLE001 -- a malformed response too: it reaches the caller
            self._failed(send, future, error)
        else:
            self._finish(send, future, result)

    def _failed(self, send: Send, future: SendFuture, error: Exception) -> None:
        """Retry after the first attempt on the loop, or finish if that cannot help."""
        if isinstance(error, ClientError) and is_retriable(error):
            send.add_failure(error)
            self._retry(send, future)
        else:
            self._finish(send, future, error)

    def _retry(self, send: Send, future: SendFuture) -> None:
        """Attempt in a task: the first attempt failed, or the route is not known yet."""
        task = self._instance.spawn(self._attempts(send), "send", is_awaited=True)

        def ended(done: asyncio.Task[SendResult]) -> None:
            if done.cancelled():
                reason = "the producer was closed before the message was acknowledged"
                self._finish(send, future, ClientClosed(reason))
            else:
                self._finish(send, future, done.exception() or done.result())

        task.add_done_callback(ended)

    async def _attempts(self, send: Send) -> SendResult:
        routes, backoff = self._instance.routes, Backoff()
        while True:
            left_ms = send.deadline_ms - self._instance.now_ms()
            if send.failures:
                is_last = left_ms <= 0 or (send.choose is None and len(send.failures) > self._retry_times)
                if send.choose is not None and not is_last:
                    await asyncio.sleep(min(backoff.next_ms(), left_ms) / 1000)
                await routes.refresh_or_keep(send.outbound.topic)
                if is_last:
                    raise send.error() from send.failures[-1]
            try:
                address = self._take_queue(send, await routes.get(send.outbound.topic))
                return self._result(send, address, await self._exchange(send, address, max(left_ms, 1)))
            except ClientError as error:
                send.add_failure(error)

    async def _exchange(self, send: Send, address: str, timeout_ms: int) -> RemotingCommand | RemotingError:
        try:
            return await self._instance.remoting.invoke(address, _command(send), timeout_ms)
        except RemotingError as error:
            return error

    # ---- the steps that all attempts share -----------------------------------------------------------------

    def _take_queue(self, send: Send, route: TopicRoute) -> str:
        """Choose the queue of the next attempt and return the address of its broker."""
        if send.choose is not None:
            send.queue = send.choose(route)
        else:
            send.queue = self.in_turn(route, None if send.queue is None else send.queue.broker_name)
        if self._strategy.is_enabled:
            send.attempt_began_ms = self._strategy.now_ms()
        return self._instance.master_of(send.queue.topic, send.queue.broker_name)

    def in_turn(self, route: TopicRoute, avoid_broker: str | None = None) -> MessageQueue:
        """Return the next writable queue. Raises PermissionDenied if there is none."""
        if not route.writable:
            raise PermissionDenied(
                ResponseCode.NO_PERMISSION, f"topic {route.topic!r} has no writable queue now", "", True
            )
        return self._strategy.choose(route.writable, avoid_broker)

    def _result(self, send: Send, address: str, answer: RemotingCommand | RemotingError) -> SendResult:
        """Return what an attempt stored, or raise why it failed; the fault strategy learns from both."""
        queue = send.queue
        assert queue is not None
        if isinstance(answer, RemotingError):
            raise self._counted(queue, self._instance.translated(answer)) from answer
        status = STATUS_OF_CODE.get(answer.code)
        if status is None:
            raise self._counted(queue, refused(answer.code, answer.remark, address))
        self._strategy.took(queue.broker_name, send.attempt_began_ms)
        ext = answer.ext
        if (queue_id := int(ext["queueId"])) != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return SendResult(
            status,
            send.outbound.msg_id,
            queue,
            int(ext["queueOffset"]),
            ext.get("msgId", ""),
            ext.get("transactionId", ""),
        )

    def _counted(self, queue: MessageQueue, error: ClientError) -> ClientError:
        self._strategy.failed(queue.broker_name, error)
        return error

    def _finish(self, send: Send, future: SendFuture, outcome: SendResult | BaseException) -> None:
        """Report the outcome to the hooks, then to the caller, which may have cancelled its future."""
        self._pending -= 1
        is_wanted = (
            not future.done() if isinstance(future, asyncio.Future) else future.set_running_or_notify_cancel()
        )
        if isinstance(outcome, SendResult):
            self._hooks.after(send.context, outcome)
            if is_wanted:
                future.set_result(outcome)
        else:
            self._hooks.after(send.context, None, outcome)
            if is_wanted:
                future.set_exception(outcome)
        if not self._pending and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None


def _command(send: Send) -> RemotingCommand:
    assert send.queue is not None
    return send.outbound.command(send.queue.queue_id)
