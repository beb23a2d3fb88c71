"""TaskQueue: enqueues tasks, and reads their states from the messages of the queue and of its results.

No other state is kept. All coroutines run on the event loop that opened the queue.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from ray.serve.schema import TaskResult

from cluster.client import ProducerConfig
from cluster.client.aio import Admin, Producer
from cluster.client.config import ClientConfig
from cluster.client.errors import BrokerRefused, TopicNotFound
from jobs.job_errors import BodyInvalid, OptionInvalid
from jobs.tasks.serve.adapter_config import RayMQAdapterConfig
from jobs.tasks.serve.task_bodies import FINAL, PENDING, REVOKED, UNKNOWN, Outcome, Task, decode, encode
from jobs.tasks.topics import ensure_topics, read_load
from store.message.message import MessageExt

SEND_RETRIES = 5
RESULTS_MAX = 64
"""Messages of one task id that are read from each broker."""
KEY_SEPARATORS = frozenset(" \x01\x02")


class TaskQueue:
    """The tasks and results of one queue. Its methods raise ClientError."""

    def __init__(self, name: str, config: RayMQAdapterConfig) -> None:
        self.name, self.group, self.results = name, group_of(name), f"{name}_results"
        self.config = config
        self.settings = config.client_settings()
        self.admin = Admin(config=ClientConfig(**self.settings))
        sends = ProducerConfig(group=self.group, retry_times_when_send_failed=SEND_RETRIES, **self.settings)
        self.producer = Producer(config=sends)

    async def open(self, *dead_queues: str | None) -> None:
        """Create the topics that are missing."""
        topics = filter(None, (self.name, self.results, *dead_queues))
        await ensure_topics(self.admin, topics, self.config.queues)

    async def close(self) -> None:
        """Close the connections."""
        await self.producer.close()
        await self.admin.close()

    async def enqueue(
        self,
        task_name: str,
        args: Any = None,
        kwargs: Any = None,
        *,
        task_id: str | None = None,
        countdown: float | None = None,
        eta: datetime | float | None = None,
        group_key: str | None = None,
    ) -> TaskResult:
        """Enqueue a call of a handler. Raises OptionInvalid, BodyInvalid.

        Args:
            task_name: Name of the handler.
            args: Its positional arguments.
            kwargs: Its named arguments.
            task_id: Id of the task. A later task of the queue with the same id does not run.
            countdown: Run the task after this time in seconds.
            eta: Run it at this time: a datetime with a time zone, or seconds since the epoch.
            group_key: Tasks with the same key run in the order in which they were enqueued.
        """
        if task_id is not None and (not task_id or KEY_SEPARATORS & set(task_id)):
            raise OptionInvalid(
                f"task_id is {task_id!r:.100}: give a text without spaces: it is a message key"
            )
        if group_key is not None and not self.config.ordered:
            raise OptionInvalid(f"group_key {group_key!r} needs RayMQAdapterConfig(ordered=True)")
        due_ms = _due_ms(countdown, eta)
        is_unique, task_id = task_id is not None, task_id or uuid.uuid4().hex
        task = Task(task_id, task_name, list(args or ()), dict(kwargs or {}), is_unique)
        sent = await self.producer.send(
            self.name,
            encode(task, self.config.serializer),
            keys=task_id,
            # Messages of one id are sent to one queue, so their order is certain.
            sharding_key=group_key or (task_id if is_unique else None),
            deliver_at=due_ms,
        )
        outcome = Outcome(task_id, PENDING, None, time.time_ns() // 1_000_000, sent.recall_handle)
        if sent.recall_handle:
            await self.publish(outcome)
        return _result(outcome)

    async def publish(self, outcome: Outcome) -> None:
        """Store a result. Raises BodyInvalid."""
        body = encode(outcome, self.config.serializer)
        await self.producer.send(self.results, body, keys=outcome.id, tags=outcome.status)

    async def final(self, task_id: str) -> Outcome | None:
        """Return the first final result on the brokers that respond, or None."""
        return _final(await self._outcomes(task_id, skip_unreachable=True))

    async def is_first(self, task_id: str, message: MessageExt) -> bool:
        """Return True if no task with an id is older than a message, on the brokers that respond."""
        found = await self._messages(self.name, task_id, skip_unreachable=True)
        return not found or found[0].msg_id == message.msg_id

    async def status(self, task_id: str) -> TaskResult:
        """Return the status PENDING, SUCCESS, FAILURE with the error as result, REVOKED, or UNKNOWN."""
        outcomes = await self._outcomes(task_id)
        if outcomes:  # the first one may be that of a timer message
            return _result(_final(outcomes) or outcomes[0])
        for message in await self._messages(self.name, task_id):
            return _result(Outcome(task_id, PENDING, None, message.born_timestamp))
        return _result(Outcome(task_id, UNKNOWN))

    async def cancel(self, task_id: str) -> None:
        """Revoke a task without a result: it is not started, and the result of a running handler is ignored.

        A running coroutine is cancelled when its claim is renewed.
        """
        outcomes = await self._outcomes(task_id)
        if _final(outcomes) is not None:
            return
        await self.publish(Outcome(task_id, REVOKED, None, outcomes[0].created_ms if outcomes else None))
        for outcome in outcomes:
            if outcome.recall_handle:
                with suppress(BrokerRefused):  # delivered meanwhile: its result keeps it from running
                    await self.producer.recall(self.name, outcome.recall_handle)

    async def _outcomes(self, task_id: str, *, skip_unreachable: bool = False) -> list[Outcome]:
        found = []
        for message in await self._messages(self.results, task_id, skip_unreachable=skip_unreachable):
            with suppress(BodyInvalid):  # not written by an adapter
                found.append(decode(message.body, Outcome))
        return [each for each in found if each.id == task_id]

    async def _messages(self, topic: str, key: str, *, skip_unreachable: bool = False) -> list[MessageExt]:
        """Return the messages with a key, oldest first."""
        begin_ms = max(time.time_ns() // 1_000_000 - self.config.result_retention_ms, 0)
        found = await self.admin.messages_by_key(
            topic, key, max_messages=RESULTS_MAX, begin_ms=begin_ms, skip_unreachable=skip_unreachable
        )
        return sorted(
            found, key=lambda each: (each.store_timestamp, each.broker_name, each.commit_log_offset)
        )


class Backlog(NamedTuple):
    """Waiting and running tasks of a queue, and the age of the oldest waiting one. None: unknown."""

    waiting: int | None
    running: int | None
    oldest_waiting_s: float | None


async def read_backlog(admin: Admin, queue_name: str) -> Backlog:
    """Return the load of a queue. Raises ClientError."""
    group = group_of(queue_name)
    try:
        waiting, running = await read_load(admin, group, queue_name)
        spans = await admin.group_time_spans(group, queue_name)
    except TopicNotFound:  # nothing was enqueued yet
        return Backlog(0, 0, None)
    delays_ms = [each.delay_ms for each in spans if each.delay_ms > 0]
    if waiting and not delays_ms:  # the group has no offsets yet
        now_ms = time.time_ns() // 1_000_000
        delays_ms = [now_ms - each.min_timestamp for each in spans if each.min_timestamp > 0]
    return Backlog(waiting, running, max(delays_ms) / 1000 if delays_ms else None)


def group_of(queue_name: str) -> str:
    """Return the consumer group of the replicas that run the tasks of a queue."""
    return f"{queue_name}_workers"


def _result(outcome: Outcome) -> TaskResult:
    created_s = None if outcome.created_ms is None else outcome.created_ms / 1000
    return TaskResult(id=outcome.id, status=outcome.status, created_at=created_s, result=outcome.result)


def _final(outcomes: list[Outcome]) -> Outcome | None:
    return next((each for each in outcomes if each.status in FINAL), None)


def _due_ms(countdown_s: float | None, eta: datetime | float | None) -> int | None:
    """Return the time to deliver a task, or None for now. Raises OptionInvalid."""
    if countdown_s is not None and eta is not None:
        raise OptionInvalid(f"countdown {countdown_s!r} and eta {eta!r} both give a time: give one of them")
    if countdown_s is None and eta is None:
        return None
    now_s = time.time()
    try:
        due_s = eta.timestamp() if isinstance(eta, datetime) else float(now_s if eta is None else eta)
        due_ms = round((due_s + float(countdown_s or 0)) * 1000)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionInvalid(
            f"countdown is {countdown_s!r}, eta {eta!r}: {error}; give seconds, or a datetime"
        ) from error
    return due_ms if due_ms > now_s * 1000 else None
