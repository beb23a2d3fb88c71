"""Start a read at the committed offsets of a consumer group, and commit the end of the read afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from cluster.client import Admin
from cluster.client.config import Nameservers
from jobs.job_errors import CommitRefused, OffsetsInvalid
from jobs.reading.describe import states_of
from jobs.reading.log_epochs import Epochs, gone_back, lost_past
from jobs.reading.splits import QueueState
from jobs.reading.starting_offsets import EARLIEST, Offsets
from store.message.message_queue import MessageQueue

GROUP_PREFIX = "group:"
"""Prefix of the name of a group as value of an option for starting offsets."""
MEMBERS_SHOWN = 3


@dataclass(frozen=True)
class GroupRead:
    """A read that started at the offsets of `group`.

    Attributes:
        nameservers: The nameservers of the cluster.
        group: The consumer group.
        ends: The offset at which the read ended (exclusive), of each queue that it advanced in.
        committed: True if the read skipped messages of uncommitted write jobs.
        epochs: The epoch of the log of each queue when the read was planned.
    """

    nameservers: Nameservers | None
    group: str
    ends: Mapping[MessageQueue, int]
    committed: bool
    epochs: Epochs = field(default_factory=dict)


_reads: WeakKeyDictionary[object, GroupRead] = WeakKeyDictionary()


def remember_read(result: object, read: GroupRead) -> None:
    """Note that `result`, a DataFrame or a dataset, returns the messages of `read`."""
    _reads[result] = read


def group_offsets(admin: Admin, group: str, states: Sequence[QueueState]) -> Offsets:
    """Return the committed offsets of `group` in the queues `states`, and EARLIEST for queues without one.

    Raises `OffsetsInvalid` if the group does not exist, and `cluster.client.ClientError`.
    """
    if group not in admin.groups():
        raise OffsetsInvalid(
            f"the read starts at the offsets of group {group!r}, which does not exist: correct the name, or"
            f" create the group with `raymq group create {group}`"
        )
    queues = {state.queue for state in states}
    found = _committed(admin, group, {queue.topic for queue in queues})
    return Offsets(EARLIEST, {queue: offset for queue, offset in found.items() if queue in queues})


def commit_read(result: object) -> dict[MessageQueue, int]:
    """Commit the end of a read as the offsets of its group. Call this after the rows were processed.

        orders = read_queue(spark, "orders", startingOffsets="group:billing")
        orders.groupBy("tags").count().write.parquet("counts")
        commit_read(orders)

    The next read that starts at the offsets of the group continues there, and so do its consumers. If the
    program fails before, the next read returns the same messages again. Offsets are never moved backwards: a
    queue in which the group has committed a higher offset meanwhile keeps it.

    Args:
        result: The DataFrame that `read_queue` returned, or the dataset that `read_dataset` returned. A
            DataFrame derived from it is refused.

    Returns:
        The committed offset of each queue in which the read advanced.

    Raises:
        CommitRefused: The read did not start at the offsets of a group, used committed=True, the group has
            live members, which commit offsets themselves, or the log of a broker went back since the read.
        FetchFailed: A broker that has restarted since the read did not respond.
        ClientError: A broker cannot be reached or refused the commit; some queues may be committed.
    """
    read = _reads.get(result)
    if read is None:
        raise CommitRefused(
            f"this {type(result).__name__} is not the result of a read from the offsets of a group: pass the"
            " object that read_queue returned for startingOffsets='group:NAME' (read_dataset: start_offset)"
        )
    if read.committed:
        raise CommitRefused(
            "the read with committed=True skipped messages of unfinished write jobs, which group"
            f" {read.group} would never get: read without committed=True to commit offsets"
        )
    with Admin(read.nameservers) as admin:
        _check_members(admin, read.group)
        _check_logs(admin, read)
        return _commit(admin, read)


def _check_members(admin: Admin, group: str) -> None:
    members = admin.group_members(group)
    if members:
        shown = ", ".join(members[:MEMBERS_SHOWN]) + (", …" if len(members) > MEMBERS_SHOWN else "")
        raise CommitRefused(
            f"group {group} has {len(members)} live members ({shown}), which commit offsets themselves: stop"
            " them and commit again, or use a group of its own for the read"
        )


def _check_logs(admin: Admin, read: GroupRead) -> None:
    topics = {queue.topic for queue in read.ends}
    states = [each for each in states_of(admin, *topics) if each.queue in read.ends]
    for queue, end in gone_back(states, read.ends, read.epochs).items():
        reason = lost_past(queue.broker_name, end)
        raise CommitRefused(f"{queue} was read up to offset {read.ends[queue]}, but {reason}: read again")


def _commit(admin: Admin, read: GroupRead) -> dict[MessageQueue, int]:
    topics = {queue.topic for queue in read.ends}
    behind = _behind(read, _committed(admin, read.group, topics))
    if behind:
        admin.commit_offsets(read.group, behind)
    # The broker ignores a commit if the group was rebalanced or reset, because it may be that of a former
    # member. This group has no members, so a reset is equivalent.
    for queue, end in _behind(read, _committed(admin, read.group, topics)).items():
        admin.reset_offset(read.group, queue, end)
    found = _committed(admin, read.group, topics)
    return {queue: found[queue] for queue in read.ends}


def _behind(read: GroupRead, committed: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """Return the ends of the queues in which the group has not committed the end of the read or more."""
    return {queue: end for queue, end in read.ends.items() if committed.get(queue, -1) < end}


def _committed(admin: Admin, group: str, topics: set[str]) -> dict[MessageQueue, int]:
    found = (item for topic in sorted(topics) for item in admin.committed_offsets(group, topic).items())
    return {queue: offset for queue, offset in found if offset is not None}
