"""What the benches have in common: how long, how often, where, and how a bench is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.bench.result import BenchResult

Progress = Callable[[str], None]


@dataclass(frozen=True)
class BenchOptions:
    """How a bench is run; the defaults are the rules under which figures may be compared."""

    seconds: float = 20.0
    warm_up_s: float = 3.0
    runs: int = 3
    flush: str = "async"
    body_bytes: int = 128
    messages: int = 4_000_000
    """How large a backlog is where a bench reads one."""
    log_bytes: int = 2 * 1024**3
    """How long a log is where a bench recovers one."""
    queues: int = 20_000
    """How many queues a broker has where a bench gives it many."""
    backlog: int = 50_000_000
    """How many messages lie in a log where a bench works on top of them."""
    cold_bytes: int = 4 * 1024**3
    """How much lies in files that the page cache does not hold, where a bench reads such."""
    connections: int = 5_000
    """How many connections are open where a bench opens many, each with ten pulls held."""
    directory: Path | None = None
    """Where stores are laid; None: the system's place for temporary files."""
    progress: Progress = lambda _: None
    """Told what is going on, in words."""

    def numbered_runs(self, what: str) -> Iterator[int]:
        """Yield the number of each run, from 0 on, and report its start."""
        for number in range(self.runs):
            self.progress(f"{what}: run {number + 1} of {self.runs}")
            yield number


class BenchFailed(Exception):
    """A bench whose figures would be worth nothing: something was lost, or did not start."""


Bench = Callable[[BenchOptions], list[BenchResult]]
