"""Options of a benchmark, its error, and the type of its `run` function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.lab.bench.result import BenchResult

Progress = Callable[[str], None]


@dataclass(frozen=True)
class BenchOptions:
    """Options of a benchmark run. Compare results only if they were measured with the same options."""

    seconds: float = 20.0
    warm_up_s: float = 3.0
    runs: int = 3
    flush: str = "async"
    body_bytes: int = 128
    messages: int = 4_000_000
    """Size of the backlog that a reading benchmark reads."""
    directory: Path | None = None
    """Parent directory of the stores; None is the system's directory for temporary files."""
    tls: Path | None = None
    """Folder with `server.crt`, `server.key` and `ca.pem`; if given, all connections use TLS."""
    progress: Progress = lambda _: None
    """Called with a line of text whenever the benchmark starts a new step."""

    def numbered_runs(self, name: str) -> Iterator[int]:
        """Yield 0, 1, … for each run, and report its start as progress of `name`."""
        for number in range(self.runs):
            self.progress(f"{name}: run {number + 1} of {self.runs}")
            yield number


class BenchFailed(Exception):
    """The benchmark has no valid result: messages were lost, or a process did not start."""


Bench = Callable[[BenchOptions], list[BenchResult]]
