"""The replicated tables of every broker, in the order in which they are copied, and logged when all change.

    definitions   topic, group, mode, user, policy            logged when they change
    requests      drain                                       logged when they change
    progress      offset, generation, reset, lock, delay,     logged once per second, if they have changed
                  order, acked, timer
    acks          offset, order, acked                        logged once per turn (`HeldAcks`)

Slaves get a part of them (`copy`). The files are those of `BrokerTables` and of the timer, locks and users.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from actors.access.sealed_secrets import SealedSecrets
from actors.access.users import AccessTable
from actors.broker.core.group.queue_locks import LockFile
from actors.broker.core.loop.queue_removal import QueueRemoval
from actors.broker.core.metadata.config_files import GROUPS, REQUEST_MODES, TOPICS
from actors.broker.core.metadata.tables import generations_from_json
from actors.broker.core.parts import BrokerParts
from actors.broker.core.table_names import (
    ACKED,
    DELAY,
    DRAIN,
    GENERATION,
    GROUP,
    LOCK,
    MODE,
    OFFSET,
    ORDER,
    POLICY,
    RESET,
    TIMER,
    TOPIC,
    USER,
)
from actors.broker.core.table_spec import Apply, Entries, TableCopy, TableSpec
from actors.broker.replication.tables.access_entries import PolicyEntries, UserEntries
from actors.broker.replication.tables.table_entries import (
    AckedEntries,
    TimerEntries,
    delay_entries,
    drain_entries,
    generation_entries,
    group_entries,
    lock_entries,
    mode_entries,
    offset_entries,
    order_entries,
    reset_entries,
    topic_entries,
)
from actors.wire.bodies.locks import HeldLock, decode_held_locks
from actors.wire.bodies.queue_ends import QueueEnds
from actors.wire.codes import RayMQRequestCode, RequestCode
from actors.wire.signing import read_credentials
from store.common.clock import Clock
from store.message.json_text import parse_rocketmq_json
from store.metadata import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    MessageRequestModeTable,
    SubscriptionGroupTable,
    TopicConfigTable,
)
from store.timer.timer_checkpoint import TimerCheckpoint
from store.timer.timer_files import follow_timer


def entries_of(specs: Iterable[TableSpec], parts: BrokerParts) -> dict[str, Entries]:
    """Return the entries of the tables that the log of a group has, by name."""
    found = ((spec.name, spec.entries(parts)) for spec in specs if spec.entries is not None)
    return {name: entries for name, entries in found if entries is not None}


def copies_of(parts: BrokerParts) -> Iterator[tuple[TableCopy, Apply]]:
    """Yield the copies of the tables that this broker uses, with the function that applies each."""
    for spec in parts.specs.values():
        apply = None if spec.copy is None else spec.copy.apply(parts)
        if spec.copy is not None and apply is not None:
            yield spec.copy, apply


def versions_of(parts: BrokerParts) -> dict[int, int]:
    """Return a number for each table that slaves copy at once; it increases with each change."""
    return {copy.code: copy.version(parts) for copy, _ in copies_of(parts) if copy.version is not None}


def _json(parse: Callable[..., Any]) -> Callable[[bytes, Clock], Any]:
    return lambda body, clock: parse(parse_rocketmq_json(body))


def _timed_json(parse: Callable[..., Any]) -> Callable[[bytes, Clock], Any]:
    return lambda body, clock: parse(parse_rocketmq_json(body), clock=clock)


def _generations(body: bytes, clock: Clock) -> dict[str, dict[int, int]]:
    content = parse_rocketmq_json(body)
    if not content:
        raise ValueError("generations is missing")
    return generations_from_json(content)


def _apply_topics(parts: BrokerParts) -> Apply:
    loop, topics = parts.loop, parts.tables.topics
    store = loop.store
    removal = QueueRemoval(store, loop.reads, topics, loop.server.request_tick, store.forget_topic)

    async def apply(table: TopicConfigTable) -> None:
        removed = topics.replace_all(table)
        with_queues = {topic for topic, _ in store.queues()} if removed else set()
        for topic in removed:
            loop.end_of_turn.wake(topic)
            if topic in with_queues:
                await removal.remove(topic)

    return apply


def _apply_locks(parts: BrokerParts) -> Apply:
    locks, file = parts.groups.locks, LockFile(parts.loop.store.root, parts.clock)

    async def apply(copied: list[HeldLock]) -> None:
        if copied or len(locks):
            locks.replace_all(copied)
            await asyncio.to_thread(file.save, copied)

    return apply


def _apply_queue_ends(parts: BrokerParts) -> Apply:
    retention = parts.loop.store.retention
    return lambda found: retention.reserve_ends(found.ends, found.position)  # False: not possible now


def _apply_timer(parts: BrokerParts) -> Apply:
    return lambda checkpoint: asyncio.to_thread(follow_timer, parts.loop.store.root, checkpoint)


def _apply_users(parts: BrokerParts) -> Apply | None:
    return None if parts.access.control is None else parts.access.control.file.replace


def _user_version(parts: BrokerParts) -> int:
    return 0 if parts.access.control is None else parts.access.control.file.changes


def _user_entries(parts: BrokerParts) -> Entries | None:
    settings, control = parts.settings, parts.access.control
    if control is None or settings.inner_credentials_file is None:
        return None
    inner = read_credentials(settings.inner_credentials_file)
    secrets = SealedSecrets(inner, f"{settings.cluster_name}/{settings.broker_name}")
    return UserEntries(control.file, secrets)


def _policy_entries(parts: BrokerParts) -> Entries | None:
    settings, control = parts.settings, parts.access.control
    if control is None or settings.inner_credentials_file is None:
        return None
    return PolicyEntries(control.file)


TABLES: Final = {
    spec.name: spec
    for spec in (
        TableSpec(
            TOPIC,
            topic_entries,
            TableCopy(
                RequestCode.GET_ALL_TOPIC_CONFIG,
                _timed_json(TopicConfigTable.from_json),
                _apply_topics,
                version=lambda parts: parts.tables.changes(TOPICS),
            ),
            is_definition=True,
        ),
        TableSpec(
            GROUP,
            group_entries,
            TableCopy(
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                _timed_json(SubscriptionGroupTable.from_json),
                lambda parts: parts.tables.groups.replace_all,
                version=lambda parts: parts.tables.changes(GROUPS),
            ),
            is_definition=True,
        ),
        TableSpec(
            MODE,
            mode_entries,
            TableCopy(
                RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
                _json(MessageRequestModeTable.from_json),
                lambda parts: parts.tables.request_modes.replace_all,
                version=lambda parts: parts.tables.changes(REQUEST_MODES),
            ),
            is_definition=True,
            of_topics=True,
        ),
        TableSpec(
            OFFSET,
            offset_entries,
            TableCopy(
                RequestCode.GET_ALL_CONSUMER_OFFSET,
                _timed_json(ConsumerOffsetTable.from_json),
                lambda parts: parts.tables.offsets.replace_all,
                follows_log=True,
            ),
            of_topics=True,
            is_acked=True,
        ),
        TableSpec(
            ACKED,
            AckedEntries,
            of_topics=True,
            is_acked=True,
        ),
        TableSpec(ORDER, order_entries, of_topics=True, is_acked=True),
        TableSpec(
            GENERATION,
            generation_entries,
            TableCopy(
                RayMQRequestCode.GET_ALL_GENERATIONS,
                _generations,
                lambda parts: parts.tables.offsets.replace_generations,
                version=lambda parts: parts.tables.offsets.claims,
            ),
            of_topics=True,
        ),
        TableSpec(RESET, reset_entries, of_topics=True, is_leaders=True),
        TableSpec(
            LOCK,
            lock_entries,
            TableCopy(
                RayMQRequestCode.GET_ALL_QUEUE_LOCKS,
                lambda body, clock: decode_held_locks(body),
                _apply_locks,
                version=lambda parts: parts.groups.locks.changes,
            ),
        ),
        TableSpec(
            DELAY,
            delay_entries,
            TableCopy(
                RequestCode.GET_ALL_DELAY_OFFSET,
                _timed_json(DelayOffsetTable.from_json),
                lambda parts: parts.tables.delay_offsets.replace_all,
                follows_log=True,
            ),
        ),
        TableSpec(
            USER,
            _user_entries,
            TableCopy(  # and their policies
                RayMQRequestCode.GET_ALL_USERS,
                lambda body, clock: AccessTable.decode(body),
                _apply_users,
                version=_user_version,
            ),
            is_definition=True,
        ),
        TableSpec(POLICY, _policy_entries, is_definition=True),
        TableSpec(DRAIN, drain_entries),
        TableSpec(
            TIMER,
            TimerEntries,
            TableCopy(
                RequestCode.GET_TIMER_CHECK_POINT,
                lambda body, clock: TimerCheckpoint.decode(body),
                _apply_timer,
                follows_log=True,
            ),
        ),
        TableSpec(
            "queue end",
            copy=TableCopy(
                RayMQRequestCode.GET_QUEUE_ENDS,
                lambda body, clock: QueueEnds.decode(body),
                _apply_queue_ends,
                follows_log=True,
            ),
        ),
    )
}
ACKED_TABLES: Final = tuple(spec for spec in TABLES.values() if spec.is_acked)
