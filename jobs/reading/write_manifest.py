"""Write manifests: each one lists the queue offsets that a write job has committed.

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

import zlib
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import NamedTuple

import msgspec

from actors.broker.core.metadata.internal_topics import WRITE_MANIFEST_TOPIC
from cluster.client.config import Nameservers
from cluster.client.errors import TopicNotFound
from jobs.reading.describe import describe_topic
from jobs.reading.reader import SplitsReader
from jobs.reading.splits import choose_ranges
from jobs.reading.starting_offsets import EARLIEST, LATEST, Offsets
from store.common.logs import get_logger

VERSION = 1
RANGES_PER_PART = 20_000


class WrittenRange(NamedTuple):
    """The offsets [begin, end) of one queue of the job's topic."""

    broker_name: str
    queue_id: int
    begin: int
    end: int


class WriteManifest(msgspec.Struct, frozen=True):
    """The committed queue offsets of one job; see the module docstring."""

    job: str
    topic: str
    rows: int
    ranges: list[WrittenRange]


class WriteManifestPart(msgspec.Struct, frozen=True):
    """The JSON body of one message of the manifest topic; see the module docstring."""

    job: str
    topic: str
    rows: int
    part: int
    parts: int
    ranges: list[WrittenRange]
    version: int = VERSION


def job_mark(topic: str) -> str:
    """Return the first characters of the UNIQ_KEYs of all messages that jobs write to `topic`."""
    return f"FF{zlib.crc32(topic.encode()) & 0xFFFF:04X}"


def merge_ranges(ranges: Iterable[WrittenRange]) -> list[WrittenRange]:
    """Return the ranges sorted by queue and offset, with adjacent ranges merged."""
    merged: list[WrittenRange] = []
    for each in sorted(ranges):
        last = merged[-1] if merged else None
        if last is not None and last[:2] == each[:2] and last.end == each.begin:
            merged[-1] = last._replace(end=each.end)
        else:
            merged.append(each)
    return merged


def encode_parts(manifest: WriteManifest) -> list[bytes]:
    """Return the message bodies of a manifest: one for every RANGES_PER_PART ranges, at least one."""
    borders = [*range(0, max(len(manifest.ranges), 1), RANGES_PER_PART), len(manifest.ranges)]
    parts = len(borders) - 1
    return [
        msgspec.json.encode(
            WriteManifestPart(
                manifest.job, manifest.topic, manifest.rows, number, parts, manifest.ranges[begin:end]
            )
        )
        for number, (begin, end) in enumerate(pairwise(borders))
    ]


def decode_write_manifests(bodies: Iterable[bytes]) -> list[WriteManifest]:
    """Return the manifests whose parts are all contained in `bodies`.

    Bodies that are invalid or have an unknown version are logged and skipped.
    """
    found: dict[str, dict[int, WriteManifestPart]] = {}
    for body in bodies:
        try:
            part = msgspec.json.decode(body, type=WriteManifestPart)
        except msgspec.DecodeError as error:
            get_logger(__name__).warning("manifest_invalid", error=str(error))
            continue
        if part.version == VERSION:
            found.setdefault(part.job, {})[part.part] = part
        else:
            get_logger(__name__).warning("manifest_version_unknown", job=part.job, version=part.version)
    return [_joined(parts) for parts in found.values() if len(parts) == next(iter(parts.values())).parts]


def _joined(parts: dict[int, WriteManifestPart]) -> WriteManifest:
    first = parts[0]
    return WriteManifest(
        first.job,
        first.topic,
        first.rows,
        [each for number in sorted(parts) for each in parts[number].ranges],
    )


def load_write_manifests(nameservers: Nameservers | None, topics: Collection[str]) -> list[WriteManifest]:
    """Return the manifests of all committed jobs of `topics`. Raises `cluster.client.ClientError`."""
    try:
        states = describe_topic(nameservers, WRITE_MANIFEST_TOPIC)
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
    return decode_write_manifests(bodies)
