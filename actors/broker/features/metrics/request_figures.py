"""Figures of the requests: times by request and response code, and requests that wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actors.broker.build_loop import BrokerLoop
from actors.broker.core.counters import BOUNDS_MS, RequestCounters, ResponseKind
from actors.broker.core.metric_labels import claim
from actors.host.figures import Figure, Histogram, Kind, Sample
from actors.wire.codes import REQUEST_NAMES, RequestCode, ResponseCode
from store.common.clock import NS_PER_MS

_LATENCY_BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
_CREATE_BOUNDS_MS = (10, 100, 1000, 3000, 5000)
_RESPONSES = {int(code): code.name.lower() for code in ResponseCode}
_LATENCY_LABELS = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")
_IMMEDIATE = ("ack", "client_manager", "heartbeat", "transaction", "consumer_manager", "admin", "reply")
"""RocketMQ's thread pools for requests that this broker handles without a queue."""


def request_figures(loop: BrokerLoop) -> Sequence[Figure]:
    """Return the figures of the requests of one broker."""
    counters, positions, reads = loop.counters, loop.store.positions, loop.reads

    def watermarks() -> Iterator[Sample]:
        for name in ("send", "async_put"):
            yield Sample((name,), positions.waiting)
        for name in ("pull", "lite_pull", "query_message"):
            yield Sample((name,), reads.waiting)
        for name in _IMMEDIATE:
            yield Sample((name,), 0)

    def created_topics() -> Iterator[Sample]:
        for status, histogram in _created(counters, RequestCode.UPDATE_AND_CREATE_TOPIC):
            yield Sample((status, "false"), histogram)

    def created_groups() -> Iterator[Sample]:
        for status, histogram in _created(counters, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP):
            yield Sample((status,), histogram)

    return (
        Figure(
            "rpc_latency", Kind.HISTOGRAM, "ms", lambda: _latencies(counters),
            "Times from decoded request to response.", _LATENCY_LABELS,
            metric="rocketmq_rpc_latency_milliseconds",
        ),
        Figure(
            "topic_create_time", Kind.HISTOGRAM, "ms", created_topics,
            "Times of requests to create or change a topic.", ("invocation_status", "is_system"),
            metric="rocketmq_topic_create_execution_time_milliseconds",
        ),
        Figure(
            "group_create_time", Kind.HISTOGRAM, "ms", created_groups,
            "Times of requests to create or change a consumer group.", ("invocation_status",),
            metric="rocketmq_consumer_group_create_execution_time_milliseconds",
        ),
        Figure(
            "processor_watermark", Kind.GAUGE, "", watermarks, "Requests that wait for the disk.",
            ("processor",), metric="rocketmq_processor_watermark",
        ),
    )  # fmt: skip


def _latencies(counters: RequestCounters) -> Iterator[Sample]:
    for fields, responses in list(counters.kinds.items()):
        kind = ResponseKind(*fields)
        labels = (
            "remoting",
            REQUEST_NAMES.get(kind.request_code, str(kind.request_code)).lower(),
            _RESPONSES.get(kind.response_code, str(kind.response_code)),
            claim(kind.was_held),
            "oneway" if kind.is_oneway else "success",
        )
        yield Sample(labels, _merged(_LATENCY_BOUNDS_MS, responses.by_time, responses.duration_ns))


def _created(counters: RequestCounters, code: RequestCode) -> Iterator[tuple[str, Histogram]]:
    """Yield the times of a request by the value of `invocation_status`."""
    for status in ("success", "failure"):
        by_time, duration_ns = [0] * (len(BOUNDS_MS) + 1), 0
        for (request_code, response_code, *_), responses in counters.kinds.items():
            if request_code == code and (response_code == ResponseCode.SUCCESS) == (status == "success"):
                by_time = [total + more for total, more in zip(by_time, responses.by_time, strict=True)]
                duration_ns += responses.duration_ns
        yield status, _merged(_CREATE_BOUNDS_MS, by_time, duration_ns)


def _merged(bounds_ms: Sequence[int], by_time: Sequence[int], duration_ns: int) -> Histogram:
    """Return a histogram with some of the bounds of the counters."""
    counts, begin = [], 0
    for bound_ms in bounds_ms:
        end = BOUNDS_MS.index(bound_ms) + 1
        counts.append(sum(by_time[begin:end]))
        begin = end
    return Histogram(
        tuple(float(bound_ms) for bound_ms in bounds_ms),
        (*counts, sum(by_time[begin:])),
        duration_ns / NS_PER_MS,
    )
