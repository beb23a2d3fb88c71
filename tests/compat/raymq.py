"""RayMQ's own services as the other peer: the same face as `rocketmq.RocketMQ`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class RayMQ:
    def __init__(self, root: Path, settings: Mapping[str, str] | None = None) -> None:
        raise NotImplementedError
