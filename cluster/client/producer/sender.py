"""Sender: sends the requests of one producer, with retries.

    choose a queue ──→ send ──→ stored ──────────────────────────→ finish with the result
      ↑                 │
      │                 ├─ error that is not retriable ───────────→ finish with the error
      │                 └─ retriable error (lost, timed out, busy, …)
      │                        ├─ retries or time used up ────────→ finish with SendFailed, or the error
      └── refresh the route ←──┘

    unkeyed   the writable queues take turns; after a failure a queue of another broker is preferred (see
              `faults`); at most `retry_times_when_send_failed` retries. If there is only one broker, and it
              has replicas, retries back off until the deadline and wait for its next master
    pinned    the queue is fixed by a sharding key, a selector or the caller; retries back off until the
              deadline and wait for a broker that restarts, as another queue would break the key's order

The first attempt does not need a task: it is a callback on the event loop (`start`), or one blocking exchange
in the caller's thread (`send_directly`). Retries run in a task.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from actors.wire.codes import ResponseCode
from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import RemotingError
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
from cluster.client.namespaces import Namespace
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
    """Return True if another attempt may succeed.

    As in RocketMQ's producer, this includes a broker's TOPIC_NOT_EXIST and NO_PERMISSION.
    """
    if isinstance(error, TopicNotFound) and not error.address:
        return False  # reported by the nameservers, not by one broker
    return error.retriable


@dataclass(slots=True, eq=False)
class Send:
    """One send in flight.

    Attributes:
        outbound: The encoded message or batch.
        choose: Function that returns the queue; None if any queue may be used.
        timeout_ms: Timeout of the first attempt.
        deadline_ms: Monotonic time at which the send fails.
        context: Context of the send hooks.
        queue: Queue of the last attempt.
        attempt_began_ms: Monotonic time at which the last attempt began.
        failures: Retriable errors of the attempts so far.
    """

    outbound: Outbound
    choose: Choose | None
    timeout_ms: int
    deadline_ms: int
    context: SendContext | None = None
    queue: MessageQueue | None = None
    attempt_began_ms: int = 0
    failures: list[ClientError] = field(default_factory=list)

    def add_failure(self, error: ClientError) -> None:
        """Record a retriable `error`; raise any other."""
        if not is_retriable(error):
            raise error
        self.failures.append(error)

    def error(self) -> ClientError:
        """Return the error of a send whose attempts all failed: SendFailed, or their common error."""
        last = self.failures[-1]
        if isinstance(last, BrokerRefused | DeadlineExceeded) and all(
            type(error) is type(last) for error in self.failures
        ):
            return last
        return SendFailed(self.outbound.topic, self.failures, last.retriable)


class MessageSender:
    """Sends the requests of one producer.

    Used on the event loop of its ClientInstance, except for `send_directly`, which runs in any thread.
    """

    def __init__(
        self,
        instance: ClientInstance,
        strategy: MQFaultStrategy,
        hooks: SendHooks,
        retry_times: int,
        names: Namespace = Namespace.NONE,
    ) -> None:
        self._instance = instance
        self._strategy = strategy
        self._hooks = hooks
        self._retry_times = retry_times
        self._unwrap_queue = names.unwrap_queue
        self._pending = 0
        self._idle: asyncio.Future[None] | None = None

    async def flush(self) -> None:
        """Wait until no send is in flight on the event loop."""
        while self._pending:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def send_directly(self, send: Send, connections: DirectConnections) -> SendResult | None:
        """Make the first attempt in the caller's thread.

        Returns None if the caller must pass the send to `start`: the route is unknown or a retry is needed.
        """
        try:
            result = self._attempt_directly(send, connections)
        except Exception as error:
            self._hooks.after(send.context, None, error)
            raise
        if result is not None:
            self._hooks.after(send.context, result)
        return result

    def start(self, send: Send, future: SendFuture) -> None:
        """Start the send, with retries. `future` receives the result or the error."""
        self._pending += 1
        route = self._instance.routes.peek(send.outbound.topic)
        if self._instance.is_closed:
            self._finish(send, future, ClientClosed("the producer is closed: create a new one"))
        elif route is None or send.failures:
            self._retry(send, future)
        else:
            self._attempt_by_callback(send, future, route)

    async def oneway(self, send: Send) -> None:
        """Send without waiting for a response."""
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
        response: RemotingCommand | RemotingError
        try:
            address = self._take_queue(send, route)
            try:
                response = connections.exchange(address, _command(send), send.timeout_ms)
            except RemotingError as error:
                response = error
            return self._result(send, address, response)
        except ClientError as error:
            send.add_failure(error)
            return None

    def _attempt_by_callback(self, send: Send, future: SendFuture, route: TopicRoute) -> None:
        try:
            address = self._take_queue(send, route)
            on_response = partial(self._on_response, send, future, address)
            self._instance.remoting.invoke_callback(address, _command(send), send.timeout_ms, on_response)
        except Exception as error:  # noqa: BLE001 -- passed to the caller; a selector or hook may raise
            self._failed(send, future, error)

    def _on_response(
        self, send: Send, future: SendFuture, address: str, response: RemotingCommand | RemotingError
    ) -> None:
        try:
            result = self._result(send, address, response)
        except Exception as error:  # noqa: BLE001 -- passed to the caller; the response may be malformed
            self._failed(send, future, error)
        else:
            self._finish(send, future, result)

    def _failed(self, send: Send, future: SendFuture, error: Exception) -> None:
        """Retry if `error` is retriable, else finish with it."""
        if isinstance(error, ClientError) and is_retriable(error):
            send.add_failure(error)
            self._retry(send, future)
        else:
            self._finish(send, future, error)

    def _retry(self, send: Send, future: SendFuture) -> None:
        """Continue in a task: the first attempt failed, or the route is unknown."""
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
                waits = send.choose is not None or self._waits_for_master(send)
                is_last = left_ms <= 0 or (not waits and len(send.failures) > self._retry_times)
                if waits and not is_last:
                    await asyncio.sleep(min(backoff.next_ms(), left_ms) / 1000)
                await routes.refresh_or_keep(send.outbound.topic)
                if is_last:
                    raise send.error() from send.failures[-1]
            try:
                address = self._take_queue(send, await routes.get(send.outbound.topic))
                return self._result(send, address, await self._exchange(send, address, max(left_ms, 1)))
            except ClientError as error:
                send.add_failure(error)

    def _waits_for_master(self, send: Send) -> bool:
        """Return True if no other broker can take an unkeyed send, but another master of the same one may."""
        route = self._instance.routes.peek(send.outbound.topic)
        return self._retry_times > 0 and route is not None and route.has_one_group

    async def _exchange(self, send: Send, address: str, timeout_ms: int) -> RemotingCommand | RemotingError:
        try:
            return await self._instance.remoting.invoke(address, _command(send), timeout_ms)
        except RemotingError as error:
            return error

    # ---- steps of an attempt -------------------------------------------------------------------------------

    def _take_queue(self, send: Send, route: TopicRoute) -> str:
        """Choose the queue of the next attempt. Return the address of its broker."""
        if send.choose is not None:
            send.queue = send.choose(route)
        else:
            send.queue = self.next_queue(route, None if send.queue is None else send.queue.broker_name)
        if self._strategy.is_enabled:
            send.attempt_began_ms = self._strategy.now_ms()
        broker_name = send.queue.broker_name
        return route.master(broker_name) or self._instance.master_of(send.queue.topic, broker_name)

    def next_queue(self, route: TopicRoute, avoid_broker: str | None = None) -> MessageQueue:
        """Return the next writable queue of `route`. Raises PermissionDenied if no queue is writable."""
        if not route.writable:
            reason = f"topic {route.topic!r} has no writable queue now: check its permission and its brokers"
            raise PermissionDenied(ResponseCode.NO_PERMISSION, reason, "", True)
        return self._strategy.choose(route.writable, avoid_broker)

    def _result(self, send: Send, address: str, response: RemotingCommand | RemotingError) -> SendResult:
        """Return the result of an attempt or raise its error. Report the outcome to the fault strategy."""
        queue = send.queue
        assert queue is not None
        if isinstance(response, RemotingError):
            raise self._record_failure(queue, self._instance.client_error(response)) from response
        status = STATUS_OF_CODE.get(response.code)
        if status is None:
            raise self._record_failure(queue, refused(response.code, response.remark, address))
        self._strategy.record_success(queue.broker_name, send.attempt_began_ms)
        ext = response.ext
        if (queue_id := int(ext["queueId"])) != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        return SendResult(
            status,
            send.outbound.msg_id,
            self._unwrap_queue(queue),
            int(ext["queueOffset"]),
            ext.get("msgId", ""),
            ext.get("transactionId", ""),
            ext.get("MSG_REGION", "DefaultRegion"),
            ext.get("TRACE_ON") != "false",
            ext.get("recallHandle", ""),
        )

    def _record_failure(self, queue: MessageQueue, error: ClientError) -> ClientError:
        self._strategy.record_failure(queue.broker_name, error)
        return error

    def _finish(self, send: Send, future: SendFuture, outcome: SendResult | BaseException) -> None:
        """Pass the outcome to the hooks, then to the future, unless the caller has cancelled it."""
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
