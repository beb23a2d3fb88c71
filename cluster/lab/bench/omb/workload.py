"""Workload file of the OpenMessaging Benchmark (YAML, keys in camel case)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.control.topology.topology_file import Source, TopologyError, explain_invalid, read_yaml
from cluster.lab.bench.options import BenchFailed

GIB = 1024**3
KEYS = 10_000
SENDS_IN_FLIGHT = 64
"""Concurrent sends of one producer."""
PROBE_TIMEOUT_S = 60.0
"""How long each subscription may take to receive its first message."""


class Workload(BaseModel):
    """Keys of a workload file, under its names; sizes in bytes, rates in messages/s of all producers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str = Field(min_length=1)
    topics: int = Field(ge=1)
    partitionsPerTopic: int = Field(ge=1)  # noqa: N815 -- keys of the file format
    """Queues of each topic on each broker."""
    keyDistributor: Literal["NO_KEY", "KEY_ROUND_ROBIN", "RANDOM_NANO"] = "NO_KEY"  # noqa: N815
    messageSize: int = Field(ge=1)  # noqa: N815
    useRandomizedPayloads: bool = False  # noqa: N815
    randomBytesRatio: float = Field(default=0.0, ge=0, le=1)  # noqa: N815
    randomizedPayloadPoolSize: int = Field(default=0, ge=0)  # noqa: N815
    payloadFile: str | None = None  # noqa: N815
    subscriptionsPerTopic: int = Field(ge=0)  # noqa: N815
    producersPerTopic: int = Field(ge=1)  # noqa: N815
    consumerPerSubscription: int = Field(default=1, ge=1)  # noqa: N815
    producerRate: float = Field(ge=0)  # noqa: N815
    """0: search the highest rate without a growing backlog."""
    consumerBacklogSizeGB: float = Field(default=0.0, ge=0)  # noqa: N815
    """Backlog in GiB that is built before the test, while the consumers are paused."""
    backlogDrainRatio: float = Field(default=1.0, ge=0, le=1)  # noqa: N815
    """Share of the backlog that must be drained before the test ends."""
    testDurationMinutes: float = Field(gt=0)  # noqa: N815
    warmupDurationMinutes: float = Field(default=1.0, ge=0)  # noqa: N815


def read_workload(path: Path) -> tuple[Workload, list[bytes]]:
    """Return the workload of a file and its payloads.

    Raises BenchFailed, which names the key, if the file or its payload is missing or invalid.
    """
    try:
        data, lines = read_yaml(path, "a workload", "the workloads of the OpenMessaging Benchmark")
        source = Source(str(path), lines, {})
        try:
            workload = Workload.model_validate(data)
        except ValidationError as error:
            raise source.error(explain_invalid(error, Workload)) from None
        if workload.consumerBacklogSizeGB and not (workload.producerRate and workload.subscriptionsPerTopic):
            text = "a backlog needs a producerRate above 0 and at least one subscription"
            raise source.error([(("consumerBacklogSizeGB",), text)])
        return workload, _payloads(workload, path, source)
    except TopologyError as error:
        raise BenchFailed(str(error)) from None


def _payloads(workload: Workload, path: Path, source: Source) -> list[bytes]:
    size = workload.messageSize
    if workload.useRandomizedPayloads:
        if not workload.randomizedPayloadPoolSize:
            text = "useRandomizedPayloads needs at least 1"
            raise source.error([(("randomizedPayloadPoolSize",), text)])
        random = int(size * workload.randomBytesRatio)
        return [os.urandom(random) + bytes(size - random) for _ in range(workload.randomizedPayloadPoolSize)]
    key = ("payloadFile",)
    if workload.payloadFile is None:
        raise source.error([(key, "this key is required without useRandomizedPayloads")])
    # Public workloads name files of the benchmark's folder, which is the parent of `workloads`.
    places = [folder / workload.payloadFile for folder in (Path(), path.parent, path.parent.parent)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        tried = ", ".join(dict.fromkeys(map(str, places)))
        raise source.error([(key, f"no such file: {tried}")])
    try:
        payload = found.read_bytes()
    except OSError as error:
        raise source.error([(key, f"cannot be read: {error}")]) from None
    if len(payload) != size:
        raise source.error([(key, f"{found} has {len(payload)} bytes, but messageSize is {size}")])
    return [payload]
