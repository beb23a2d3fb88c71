"""Retries: retries messages whose listener call failed, in one of two ways (`PushConfig.retry`).

    in place   failed ─ back-off ─→ listener            (up to `max_reconsume_times`, then)
                  └ CONSUMER_SEND_MSG_BACK, level -1 ─→ dead-letter topic ─→ finished

    broker     failed ─ CONSUMER_SEND_MSG_BACK ─→ finished; the broker stores the message in the retry topic
                  └ not accepted ─ back-off ─→ listener

With `retry="broker"`, the broker counts the retries, and moves the message to the dead-letter topic after the
last one. Until then, it delivers the message through the retry topic to any member of the group, including
Java members.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from actors.supervisor import Supervisor
from cluster.client.config import PushConfig
from cluster.client.consumer.queue_work import QueueWork, Task
from cluster.client.consumer.send_back import DEAD_LETTER_LEVEL, SendBackClient
from store.common.logs import get_logger

_log = get_logger(__name__)

Offer = Callable[[Task], None]
Settled = Callable[[QueueWork], None]


class TaskRetries(Protocol):
    """Retries tasks whose listener call failed. Its methods must be called on the event loop."""

    def failed(self, task: Task, delay_level: int, offer: Offer) -> None:
        """Retry the messages of a task whose listener call failed.

        Args:
            task: The task whose listener call failed. Its queue still counts it as running.
            delay_level: The delay level that the listener returned; 0 if it returned none, -1 for the
                dead-letter topic.
            offer: Puts the task into the ready list of the listener threads again.
        """


def make_retries(
    config: PushConfig, supervisor: Supervisor, send_back: SendBackClient, settled: Settled
) -> TaskRetries:
    """Return RetryByBroker or RetryInPlace, as `config.retry` selects.

    Args:
        config: Settings of the consumer.
        supervisor: Runs the background tasks that send messages back to the broker.
        send_back: Sends messages to the retry topic or the dead-letter topic.
        settled: Called with a queue that can fetch again, or that is being released and has no running task.
    """
    kind = RetryByBroker if config.retry == "broker" else RetryInPlace
    return kind(config, supervisor, send_back, settled)


class RetryInPlace:
    """Calls the listener again after a back-off. The offset is not committed until the task is finished."""

    def __init__(
        self, config: PushConfig, supervisor: Supervisor, send_back: SendBackClient, settled: Settled
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._send_back = send_back
        self._settled = settled

    def failed(self, task: Task, delay_level: int, offer: Offer) -> None:
        """Retry the messages after a back-off, or send them to the dead-letter topic after the last retry."""
        work = task.work
        if work.settle(task, succeeded=False):
            self._settled(work)
        if work.is_leaving:
            return
        if delay_level > 0:
            _log.warning(
                "delay_level_ignored",
                group=self._config.group,
                delay_level=delay_level,
                remedy='set PushConfig(retry="broker")',
            )
        attempts, delay_s = count_attempt(task), backoff_s(task, self._config)
        if delay_level < 0 or attempts > self._config.max_reconsume_times:
            self._supervisor.start("dead letter", partial(self._send_to_dlq, task))
        else:
            asyncio.get_running_loop().call_later(delay_s, offer, task)

    async def _send_to_dlq(self, task: Task) -> None:
        work = task.work
        while not work.is_leaving:
            task.messages = await self._send_back.send(work.queue, task.messages, DEAD_LETTER_LEVEL)
            if not task.messages:
                work.finish(task)
                self._settled(work)
                return
            await asyncio.sleep(backoff_s(task, self._config))


class RetryByBroker:
    """Sends the messages back to their broker, which delivers them again after the delay of `delay_level`.

    If the broker is unreachable or rejects a message, the message is retried in place.
    """

    def __init__(
        self, config: PushConfig, supervisor: Supervisor, send_back: SendBackClient, settled: Settled
    ) -> None:
        self._config = config
        self._supervisor = supervisor
        self._send_back = send_back
        self._settled = settled

    def failed(self, task: Task, delay_level: int, offer: Offer) -> None:
        """Send the messages back to the broker. Their queue is not released before the response."""
        if task.work.is_leaving:
            # The next owner of the queue fetches the messages again, because their offset is not committed.
            if task.work.settle(task, succeeded=False):
                self._settled(task.work)
            return
        task.is_returned = True
        self._supervisor.start("send back", partial(self._return, task, delay_level, offer))

    async def _return(self, task: Task, delay_level: int, offer: Offer) -> None:
        work = task.work
        unsent = await self._send_back.send(work.queue, task.messages, delay_level)
        if not unsent:
            work.finish(task)
        has_room = work.settle(task, succeeded=False)
        if has_room or not unsent:
            self._settled(work)
        if unsent and not work.is_leaving and not task.is_abandoned:
            task.messages = unsent
            count_attempt(task)
            asyncio.get_running_loop().call_later(backoff_s(task, self._config), offer, task)


def count_attempt(task: Task) -> int:
    """Add 1 to `reconsume_times` of each message of `task`, and return the highest value."""
    for message in task.messages:
        message.reconsume_times += 1
    return max(message.reconsume_times for message in task.messages)


def backoff_s(task: Task, config: PushConfig) -> float:
    """Return the delay in seconds before the next listener call, from `config.retry_backoff_ms`."""
    attempts = max(message.reconsume_times for message in task.messages)
    delays_ms = config.retry_backoff_ms
    return delays_ms[min(attempts, len(delays_ms)) - 1] / 1000
