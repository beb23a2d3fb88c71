"""The first and the last step of a write, in the driver of Spark or Ray: check the topic, commit the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cluster.client.errors import ClientError
from jobs.describe import describe_topic
from jobs.job_errors import CommitFailed, OptionInvalid, TopicNotEmpty
from jobs.manifest import PartitionReceipt, ensure_manifest_topic, make_manifest, publish
from jobs.write_job import WriteJob

MODES = ("append", "errorifexists")


@dataclass(frozen=True)
class WriteReceipt:
    """Result of a committed write.

    Attributes:
        job_id: Id of the job in its manifest.
        topic: The topic.
        rows: Number of rows.
        partitions: Number of partitions that were written.
    """

    job_id: str
    topic: str
    rows: int
    partitions: int


def prepare_topic(job: WriteJob, mode: str) -> None:
    """Check mode and topic before the first task starts, and create the manifest topic if necessary.

    Raises `OptionInvalid`, `TopicNotEmpty`, and `cluster.client.ClientError`, for example TopicNotFound.
    """
    if mode not in MODES:
        raise OptionInvalid(f"mode={mode!r} is unknown: use one of {', '.join(MODES)}")
    states = describe_topic(job.nameservers, job.topic)
    if mode == "errorifexists":
        count = sum(state.max_offset - state.min_offset for state in states)
        if count:
            raise TopicNotEmpty(
                f"topic {job.topic} contains {count:,} messages and mode is 'errorifexists': use an empty"
                " topic, or mode='append'"
            )
    ensure_manifest_topic(job.nameservers)


def commit(job: WriteJob, receipts: Sequence[PartitionReceipt]) -> WriteReceipt:
    """Store the manifest of a job with these receipts. Raises `CommitFailed`."""
    manifest = make_manifest(job.job_id, job.topic, receipts)
    try:
        publish(job.nameservers, manifest)
    except ClientError as error:
        raise CommitFailed(
            f"topic {job.topic}: all {manifest.rows:,} rows of job {job.job_id} are stored, but it is"
            f" unknown whether the manifest is: {error}. Check with committed=True whether the rows are"
            " visible; if they are not, write again"
        ) from error
    return WriteReceipt(job.job_id, job.topic, manifest.rows, len(receipts))
