"""The first and the last step of a write job, in the driver of Spark or Ray: check the topic, and commit.

The commit stores a write manifest (`jobs.reading.write_manifest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from actors.broker.core.metadata.internal_topics import WRITE_MANIFEST_TOPIC
from cluster.client import Admin, Producer, SelectMessageQueueByRandom
from cluster.client.config import Nameservers
from cluster.client.errors import ClientError, TopicNotFound
from jobs.job_errors import CommitFailed, TopicNotEmpty
from jobs.option_values import as_choice
from jobs.reading.describe import describe_topic
from jobs.reading.splits import QueueState
from jobs.reading.write_manifest import WriteManifest, encode_parts, merge_ranges
from jobs.writing.partition_writer import WRITER_GROUP, PartitionReceipt
from jobs.writing.write_job import WriteJob

MANIFEST_GROUP = "RAYMQ_WRITE_MANIFESTS"
MODES = ("append", "errorifexists")


@dataclass(frozen=True)
class WriteReceipt:
    """Result of a committed write.

    Attributes:
        job_id: Id of the job, which its manifest contains.
        topic: Topic that the rows were written to.
        rows: Number of rows written.
        partitions: Number of partitions written.
    """

    job_id: str
    topic: str
    rows: int
    partitions: int


def prepare_topic(job: WriteJob, mode: str) -> None:
    """Check the mode and the topic of a job, and create the manifest topic if it does not exist.

    The driver calls this before the first task starts. A topic that does not exist is created by the first
    send to it. Raises `OptionInvalid` if the mode is unknown, `TopicNotEmpty` if the mode requires an empty
    topic, and `cluster.client.ClientError`: TopicNotFound if the brokers do not create topics automatically.
    """
    mode = as_choice("mode", mode, MODES)
    states = _states_of(job)
    if mode == "errorifexists":
        count = sum(state.max_offset - state.min_offset for state in states)
        if count:
            raise TopicNotEmpty(
                f"topic {job.topic} contains {count:,} messages, but mode='errorifexists' requires an empty"
                " topic: use another topic, or mode='append'"
            )
    ensure_manifest_topic(job.nameservers)


def _states_of(job: WriteJob) -> list[QueueState]:
    """Return the queues of the topic of a job; none of a topic that the first send will create."""
    with suppress(TopicNotFound):
        return describe_topic(job.nameservers, job.topic)
    with Producer(job.nameservers, WRITER_GROUP) as producer:
        producer.queues(job.topic)
    return []


def commit(job: WriteJob, receipts: Sequence[PartitionReceipt]) -> WriteReceipt:
    """Commit a job: store a manifest with the receipts of all its partitions.

    Raises `CommitFailed` if it is unknown whether the manifest is stored.
    """
    manifest = make_write_manifest(job.job_id, job.topic, receipts)
    try:
        publish(job.nameservers, manifest)
    except ClientError as error:
        raise CommitFailed(
            f"topic {job.topic}: all {manifest.rows:,} rows of job {job.job_id} are stored, but it is"
            f" unknown whether its manifest is stored: {error}. Read the topic with committed=True; if the"
            " result does not contain the rows, write them again"
        ) from error
    return WriteReceipt(job.job_id, job.topic, manifest.rows, len(receipts))


def make_write_manifest(job_id: str, topic: str, receipts: Sequence[PartitionReceipt]) -> WriteManifest:
    """Return the manifest of a job with the ranges and rows of the receipts of its partitions."""
    ranges = merge_ranges(each for receipt in receipts for each in receipt.ranges)
    return WriteManifest(job_id, topic, sum(receipt.rows for receipt in receipts), ranges)


def ensure_manifest_topic(nameservers: Nameservers | None) -> None:
    """Create the manifest topic if it does not exist. Raises `cluster.client.ClientError`."""
    with Admin(nameservers) as admin:
        try:
            admin.route(WRITE_MANIFEST_TOPIC)
        except TopicNotFound:
            admin.create_topic(WRITE_MANIFEST_TOPIC, queues=1)


def publish(nameservers: Nameservers | None, manifest: WriteManifest) -> None:
    """Commit a job: send the parts of its manifest to the manifest topic.

    Raises `cluster.client.ClientError`. After an error, the job may or may not be committed.
    """
    # With a selector, the send is retried until `delivery_timeout_ms`: long enough for a broker restart.
    any_queue = SelectMessageQueueByRandom()
    with Producer(nameservers, MANIFEST_GROUP) as producer:
        for body in encode_parts(manifest):
            producer.send(
                WRITE_MANIFEST_TOPIC, body, tags=manifest.topic, keys=manifest.job, selector=any_queue
            )
