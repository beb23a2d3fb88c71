"""Logs of the processes that a test started, for its failure report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from cluster.control.session.ray_head import temporary_directory

TAIL_LINES = 200


def log_tails(roots: list[Path], since_s: float) -> Iterator[tuple[Path, str]]:
    """Yield each log file written since `since_s` (seconds since the epoch) with its last 200 lines.

    Args:
        roots: directories that are searched for ``*.log`` files, including all subdirectories.
    """
    for root in [*roots, *ray_log_directories()]:
        for path in sorted(root.rglob("*.log")):
            if path.is_file() and path.stat().st_mtime >= since_s:
                lines = path.read_text(errors="replace").splitlines()
                yield path, "\n".join(lines[-TAIL_LINES:])


def ray_log_directories() -> list[Path]:
    """Return the log directories of RayMQ actors, one per Ray session on this machine."""
    return sorted((temporary_directory(os.environ) / "ray").glob("session_2*/logs/raymq"))
