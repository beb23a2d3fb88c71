"""TaskQueue: enqueues tasks, and reads their states from the messages of the queue and of its results.

No other state is kept. All coroutines run on the event loop that opened the queue.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from cluster.client import ProducerConfig
from cluster.client.aio import Admin, Producer
from cluster.client.config import ClientConfig
from cluster.client.errors import BrokerRefused, TopicNotFound
from cluster.views.offsets import known_sum
from jobs.job_errors import BodyInvalid, OptionInvalid
from jobs.tasks.serve.adapter_config import RayMQAdapterConfig
from jobs.tasks.serve.task_bodies import (
    FINAL,
    PENDING,
    REVOKED,
    UNKNOWN,
    Outcome,
    Task,
    check_task_id,
    decode,
    encode,
)
from jobs.tasks.topics import ensure_topics
from store.message.message import MessageExt

SEND_RETRIES = 5
RESULTS_MAX = 64
"""Messages of one task id that are read from each broker."""


class TaskQueue:
    """The tasks and results of one queue."""

    def __init__(self, name: str, config: RayMQAdapterConfig) -> None:
        self.name = name
        self.group = group_of(name)
        self.results = f"{name}_results"
        self.settings = config.client_settings()
        self._config = config
        self.admin = Admin(config=ClientConfig(**self.settings))
        self.producer = Producer(
            config=ProducerConfig(
                group=self.group, retry_times_when_send_failed=SEND_RETRIES, **self.settings
            )
        )

    async def open(self, *dead_queues: str | None) -> None:
        """Create the topics that are missing. Raises ClientError."""
        topics = filter(None, (self.name, self.results, *dead_queues))
        await ensure_topics(self.admin, topics, self._config.queues)

    async def close(self) -> None:
        """Close the connections."""
        await self.producer.close()
        await self.admin.close()

    async def enqueue(
        self,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        *,
        task_id: str | None = None,
        countdown: float | None = None,
        eta: datetime | float | None = None,
        group_key: str | None = None,
    ) -> Outcome:
        """Enqueue a call of the handler `name`. Raises OptionInvalid, BodyInvalid, ClientError.

        Args:
            name: Name of the handler.
            args: Its positional arguments.
            kwargs: Its named arguments.
            task_id: Id of the task. A later task of the queue with the same id does not run.
            countdown: Run the task after this time in seconds.
            eta: Run it at this time: a datetime with a time zone, or seconds since the epoch.
            group_key: Tasks with the same key run in the order in which they were enqueued.
        """
        if task_id is not None:
            check_task_id(task_id)
        if group_key is not None and not self._config.ordered:
            raise OptionInvalid(f"group_key {group_key!r} needs RayMQAdapterConfig(ordered=True)")
        due_ms = _due_ms(countdown, eta)
        task = Task(
            task_id or uuid.uuid4().hex, name, list(args or ()), dict(kwargs or {}), task_id is not None
        )
        sent = await self.producer.send(
            self.name,
            encode(task, self._config.serializer),
            keys=task.id,
            # Messages of one id are sent to one queue, so their order is certain.
            sharding_key=group_key or task_id,
            deliver_at=due_ms,
        )
        outcome = Outcome(task.id, PENDING, None, time.time_ns() // 1_000_000, sent.recall_handle)
        if outcome.recall_handle:
            await self.publish(outcome)
        return outcome

    async def publish(self, outcome: Outcome) -> None:
        """Store a result. Raises BodyInvalid, ClientError."""
        body = encode(outcome, self._config.serializer)
        await self.producer.send(self.results, body, keys=outcome.id, tags=outcome.status)

    async def final(self, task_id: str) -> Outcome | None:
        """Return the first final result on the brokers that respond, or None. Raises ClientError."""
        return _final(await self._outcomes(task_id, skip_unreachable=True))

    async def first(self, task_id: str) -> MessageExt | None:
        """Return the first task with an id on the brokers that respond, or None. Raises ClientError."""
        return next(iter(await self._messages(self.name, task_id, skip_unreachable=True)), None)

    async def status(self, task_id: str) -> Outcome:
        """Return the result of a task, or that it is pending or unknown. Raises ClientError."""
        outcomes = await self._outcomes(task_id)
        if outcomes:  # the first one may be that of a timer message
            return _final(outcomes) or outcomes[0]
        messages = await self._messages(self.name, task_id)
        return (
            Outcome(task_id, PENDING, None, messages[0].born_timestamp)
            if messages
            else Outcome(task_id, UNKNOWN)
        )

    async def cancel(self, task_id: str) -> None:
        """Give a task the result REVOKED, unless it has one. Raises ClientError."""
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
        begin_ms = max(time.time_ns() // 1_000_000 - self._config.result_retention_ms, 0)
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
    """Return the load of a queue, with its retries, without tasks of timers. Raises ClientError."""
    group = group_of(queue_name)
    try:
        stats, spans = (
            await admin.group_stats(group, queue_name),
            await admin.group_time_spans(group, queue_name),
        )
    except TopicNotFound:  # nothing was enqueued yet
        return Backlog(0, 0, None)
    with suppress(BrokerRefused):  # the group has not consumed yet
        stats.offsets |= (await admin.group_stats(group)).offsets
    lag, running = stats.lag, known_sum(each.in_flight for each in stats.offsets.values())
    waiting = None if lag is None else max(lag - (running or 0), 0)
    delays_ms = [each.delay_ms for each in spans if each.delay_ms > 0]
    if waiting and not delays_ms:  # the group has no offsets yet
        now_ms = time.time_ns() // 1_000_000
        delays_ms = [now_ms - each.min_timestamp for each in spans if each.min_timestamp > 0]
    return Backlog(waiting, running, max(delays_ms) / 1000 if delays_ms else None)


def group_of(queue_name: str) -> str:
    """Return the consumer group of the replicas that run the tasks of a queue."""
    return f"{queue_name}_workers"


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
