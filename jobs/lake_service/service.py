"""LakeService: runs the rounds of a lake every few seconds, and serves its status and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from actors.host.descriptors import reserve_descriptors
from actors.host.figures import Figure, Kind, Sample
from actors.host.metrics.endpoint import CONNECTIONS, LAKE_PORT, MetricsEndpoint
from jobs.lake_service.lake_rounds import LakeRounds, TableProgress
from jobs.lake_service.process_settings import LakeProcessSettings
from store.common.clock import NS_PER_MS, Clock
from store.common.logs import get_logger

_log = get_logger(__name__)

OF_TABLES = (
    ("behind_s", "s", "raymq_lake_behind_seconds", "Seconds since the table of a topic had all messages."),
    ("rows", "", "raymq_lake_rows", "Rows of the table."),
    ("files", "", "raymq_lake_files", "Files of the table."),
    ("lost", "", "raymq_lake_lost_messages", "Messages that were deleted before the table had them."),
    ("failures", "", "raymq_lake_failures", "Failed rounds of a topic since the last one that did not fail."),
)
OF_ROUNDS = (
    ("rounds", "raymq_lake_rounds_total", "Rounds of all topics."),
    (
        "failed_rounds",
        "raymq_lake_failed_rounds_total",
        "Rounds that failed, those included that found no topics.",
    ),
    (
        "failed_upkeeps",
        "raymq_lake_failed_upkeeps_total",
        "Compactions and expiries that failed, and are repeated after `upkeep_interval_s`.",
    ),
)


class LakeService:
    """Calls the rounds in one thread, and waits for the present one when it is stopped."""

    def __init__(
        self,
        settings: LakeProcessSettings,
        rounds: LakeRounds,
        name: str,
        clock: Clock,
        on_failure: Callable[[str], None],
    ) -> None:
        """Create the service; `on_failure` is called with the reason if a round fails unexpectedly."""
        self._settings = settings
        self._rounds = rounds
        self._clock = clock
        self._on_failure = on_failure
        self._thread = ThreadPoolExecutor(1, "lake")
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        labels = {"cluster": settings.cluster_name, "node_type": "lake", "node_id": name}
        reserve_descriptors(CONNECTIONS.limit)
        self.metrics = MetricsEndpoint(settings, self._figures(), lambda: labels)

    async def start(self) -> None:
        """Start the rounds. Raises OSError if the given port of the metrics is in use."""
        await self.metrics.start(LAKE_PORT)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop after the present round of a topic."""
        self._stopping.set()
        await self.metrics.stop()
        if self._task is not None:
            await self._task
        await asyncio.get_running_loop().run_in_executor(self._thread, self._rounds.close)
        self._thread.shutdown(wait=False)

    def details(self) -> dict[str, Any]:
        """Return what is known about each table; what is unknown is None."""
        tables, problems = {}, []
        for topic, each in self._tables():
            tables[topic] = asdict(each) | {"behind_s": each.behind_s(self._clock.monotonic_ns())}
            del tables[topic]["caught_up_ns"]
            problems += [f"{topic}: {each.problem}"] if each.problem else []
        return {"problem": self._rounds.problem or "; ".join(problems), "tables": tables}

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while not self._stopping.is_set():
                begin_ns = self._clock.monotonic_ns()
                is_left = await loop.run_in_executor(self._thread, self._rounds.tick, self._stopping.is_set)
                passed_s = (self._clock.monotonic_ns() - begin_ns) / NS_PER_MS / 1000
                pause_s = 0.0 if is_left else max(self._settings.freshness_s - passed_s, 0.0)
                try:
                    await asyncio.wait_for(self._stopping.wait(), pause_s)
                except TimeoutError:
                    continue
        # Ray restarts the actor, and its first round begins with what the tables contain.
        except Exception as error:  # noqa: BLE001 - logged, and reported to the host
            _log.exception("lake_failed")
            self._on_failure(f"{type(error).__name__}: {error}")

    def _tables(self) -> list[tuple[str, TableProgress]]:
        return sorted(dict(self._rounds.tables).items())

    def _figures(self) -> tuple[Figure, ...]:
        def samples(name: str) -> Iterator[Sample]:
            found = ((topic, each[name]) for topic, each in self.details()["tables"].items())
            return (Sample((topic,), known) for topic, known in found if known is not None)

        return (
            *(
                Figure(name, Kind.GAUGE, unit, partial(samples, name), text, ("topic",), metric=metric)
                for name, unit, metric, text in OF_TABLES
            ),
            *(
                Figure(name, Kind.COUNTER, "", partial(getattr, self._rounds, name), text, metric=metric)
                for name, metric, text in OF_ROUNDS
            ),
        )
