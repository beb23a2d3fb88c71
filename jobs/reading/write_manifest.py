"""Manifests: each one lists the queue offsets that a write job has committed.

A job sends its messages directly to the topic, where ordinary consumers see them immediately. When all
partitions are written, the job sends a manifest to the topic RAYMQ_WRITE_MANIFESTS. The manifest lists the
queue offsets of the messages of successful attempts. A committed read skips all other messages of jobs:
messages of failed attempts, duplicates, and messages of jobs that are running or were aborted.

A manifest is sent in parts, and is valid when all parts are stored. A part is a message with JSON::

    {"version": 1, "job": "…", "topic": "orders", "rows": 100, "part": 0, "parts": 1,
     "ranges": [["broker-a", 0, 500, 600]]}          broker, queue id, begin, end (exclusive)

A manifest is stored later than the messages that it lists. Therefore retention deletes it after them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from cluster.client import Admin, Producer, SelectMessageQueueByRandom
from cluster.client.config import Nameservers
from cluster.client.errors import TopicNotFound
from jobs.reading.describe import describe_topic
from jobs.reading.splits import choose_ranges
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets
from store.logs import get_logger

MANIFEST_TOPIC = "RAYMQ_WRITE_MANIFESTS"
MANIFEST_GROUP = "RAYMQ_WRITE_MANIFESTS"
VERSION = 1
RANGES_PER_PART = 20_000


class QueueRange(NamedTuple):
    """The offsets [begin, end) of one queue of the job's topic."""

    broker_name: str
    queue_id: int
    begin: int
    end: int


class PartitionReceipt(msgspec.Struct, frozen=True):
    """The queue offsets of the rows of one partition, stored by one successful attempt."""

    partition: int
    attempt: int
    rows: int
    ranges: list[QueueRange]


class Manifest(msgspec.Struct, frozen=True):
    """The committed queue offsets of one job; see the module docstring."""

    job: str
    topic: str
    rows: int
    ranges: list[QueueRange]


class ManifestPart(msgspec.Struct, frozen=True):
    """The JSON body of one message of the manifest topic; see the module docstring."""

    job: str
    topic: str
    rows: int
    part: int
    parts: int
    ranges: list[QueueRange]
    version: int = VERSION


def merge_ranges(ranges: Iterable[QueueRange]) -> list[QueueRange]:
    """Return the ranges sorted by queue and offset, with adjacent ranges merged."""
    merged: list[QueueRange] = []
    for each in sorted(ranges):
        last = merged[-1] if merged else None
        if last is not None and last[:2] == each[:2] and last.end == each.begin:
            merged[-1] = last._replace(end=each.end)
        else:
            merged.append(each)
    return merged


def make_manifest(job_id: str, topic: str, receipts: Sequence[PartitionReceipt]) -> Manifest:
    """Return the manifest of a job with the ranges and rows of the receipts of its partitions."""
    ranges = merge_ranges(each for receipt in receipts for each in receipt.ranges)
    return Manifest(job_id, topic, sum(receipt.rows for receipt in receipts), ranges)


def encode_parts(manifest: Manifest) -> list[bytes]:
    """Return the message bodies of a manifest: one for every RANGES_PER_PART ranges, at least one."""
    borders = [*range(0, max(len(manifest.ranges), 1), RANGES_PER_PART), len(manifest.ranges)]
    parts = len(borders) - 1
    return [
        msgspec.json.encode(
            ManifestPart(
                manifest.job, manifest.topic, manifest.rows, number, parts, manifest.ranges[begin:end]
            )
        )
        for number, (begin, end) in enumerate(pairwise(borders))
    ]


def decode_manifests(bodies: Iterable[bytes]) -> list[Manifest]:
    """Return the manifests whose parts are all contained in `bodies`.

    Bodies that are invalid or have an unknown version are logged and skipped.
    """
    found: dict[str, dict[int, ManifestPart]] = {}
    for body in bodies:
        try:
            part = msgspec.json.decode(body, type=ManifestPart)
        except msgspec.DecodeError as error:
            get_logger(__name__).warning("manifest_invalid", error=str(error))
            continue
        if part.version == VERSION:
            found.setdefault(part.job, {})[part.part] = part
        else:
            get_logger(__name__).warning("manifest_version_unknown", job=part.job, version=part.version)
    return [_joined(parts) for parts in found.values() if len(parts) == next(iter(parts.values())).parts]


def _joined(parts: dict[int, ManifestPart]) -> Manifest:
    first = parts[0]
    return Manifest(
        first.job,
        first.topic,
        first.rows,
        [each for number in sorted(parts) for each in parts[number].ranges],
    )


def ensure_manifest_topic(nameservers: Nameservers | None) -> None:
    """Create the manifest topic if it does not exist. Raises `cluster.client.ClientError`."""
    with Admin(nameservers) as admin:
        try:
            admin.route(MANIFEST_TOPIC)
        except TopicNotFound:
            admin.create_topic(MANIFEST_TOPIC, queues=1)


def publish(nameservers: Nameservers | None, manifest: Manifest) -> None:
    """Commit a job: send the parts of its manifest to the manifest topic.

    Raises `cluster.client.ClientError`. After an error, the job may or may not be committed.
    """
    # With a selector, the send is retried until `delivery_timeout_ms`: long enough for a broker restart.
    any_queue = SelectMessageQueueByRandom()
    with Producer(nameservers, MANIFEST_GROUP) as producer:
        for body in encode_parts(manifest):
            producer.send(MANIFEST_TOPIC, body, tags=manifest.topic, keys=manifest.job, selector=any_queue)


def load_manifests(nameservers: Nameservers | None, topics: Collection[str]) -> list[Manifest]:
    """Return the manifests of all committed jobs of `topics`. Raises `cluster.client.ClientError`."""
    from jobs.reading.reader import SplitsReader

    try:
        states = describe_topic(nameservers, MANIFEST_TOPIC)
    except TopicNotFound:
        return []
    splits, _ = choose_ranges(states, Offsets(EARLIEST), Offsets(LATEST))
    reader = SplitsReader(splits, ("tags", "body"), fail_on_data_loss=False, map_files=True)
    bodies = (
        row["body"]
        for split in splits
        for batch in reader.read_split(split)
        for row in batch.to_pylist()
        if row["tags"] in topics and row["body"] is not None
    )
    return decode_manifests(bodies)
