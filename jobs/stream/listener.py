"""StreamListener: starts a planner for each query that reads a stream, and stops it with the query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from jobs.stream.java import java_session
from jobs.stream.planner import Planner
from store.logs import get_logger

_log = get_logger(__name__)


class Stream(Protocol):
    """A stream that queries may read."""

    @property
    def manifests(self) -> str:
        """The directory that Spark's file source reads."""

    @property
    def metric(self) -> str:
        """The name of the metric in the query's progress."""

    def planner(self, query_id: str, checkpoint: str) -> Planner | None:
        """Return a planner for a query with this checkpoint, or None if the query is refused."""


class StreamListener(StreamingQueryListener):
    """Spark calls `onQueryStarted` before the first batch of a query, and waits for it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._streams: dict[str, Stream] = {}
        self._running: dict[str, dict[str, Planner]] = {}

    def add(self, stream: Stream) -> None:
        """Plan for queries that read `stream`; it replaces an earlier one with the same manifests."""
        self._streams[stream.manifests] = stream

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's names
        """Start the planners of the query, or write all its manifests if it ends with what is there now."""
        try:
            query = java_session(self._spark).streams().get(str(event.id)).streamingQuery()
            for path in _paths(query):
                if path in self._streams:
                    self._start(self._streams[path], query, str(event.id), str(event.runId))
        except Exception as error:  # noqa: BLE001 - Spark ignores exceptions of listeners
            _log.error("stream_not_planned", query_id=str(event.id), error=str(error), exc_info=True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report to the planners which manifest the committed batch had."""
        for metric, planner in self._running.get(str(event.progress.runId), {}).items():
            row = event.progress.observedMetrics.get(metric)
            if row is not None and row["manifest"] is not None:
                planner.committed(row["manifest"])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: the planners poll."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Stop the planners of the query."""
        for planner in self._running.pop(str(event.runId), {}).values():
            planner.stop()

    def _start(self, stream: Stream, query: Any, query_id: str, run_id: str) -> None:
        planner = stream.planner(query_id, str(query.resolvedCheckpointRoot()))
        if planner is None:
            return
        self._running.setdefault(run_id, {})[stream.metric] = planner
        trigger = str(query.trigger().toString())
        if trigger.startswith(("AvailableNow", "OneTime")):
            planner.plan_available(in_one_batch=trigger.startswith("OneTime"))
        else:
            planner.start()


def _paths(query: Any) -> Iterator[str]:
    """Yield the paths of the file sources that the plan of `query` reads."""
    leaves = query.analyzedPlan().collectLeaves()
    paths = set()
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() == "StreamingRelation":
            path = leaf.dataSource().options().get("path")
            paths |= {str(path.get())} if path.isDefined() else set()
    yield from paths


_listeners: WeakKeyDictionary[SparkSession, StreamListener] = WeakKeyDictionary()


def listener_of(spark: SparkSession) -> StreamListener:
    """Return the streaming query listener of a Spark session; create and register it on the first call."""
    listener = _listeners.get(spark)
    if listener is None:
        listener = _listeners[spark] = StreamListener(spark)
        spark.streams.addListener(listener)
    return listener
