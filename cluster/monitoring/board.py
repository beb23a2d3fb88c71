"""The Grafana board of a cluster, as JSON for the import.

Panels with metrics of RocketMQ only work for Apache RocketMQ's brokers too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from cluster.monitoring.alerts import GRAFANA

BOARD: Final = GRAFANA / "raymq.json"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_OF_NODE: Final = 'cluster=~"$cluster",node_id=~"$node"'
_OF_TOPIC: Final = f'{_OF_NODE},topic=~"$topic"'
_OF_GROUP: Final = f'{_OF_TOPIC},consumer_group=~"$group"'
_WIDTH, _PER_ROW, _HEIGHT = 24, 3, 8


class Query(NamedTuple):
    """One query of a panel, and the name of its series."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """A panel of the kind `timeseries`, `stat` or `heatmap`; `unit` is Grafana's id of a unit."""

    title: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"


class Variable(NamedTuple):
    """A variable of the board with the values of a label."""

    name: str
    query: str


def _rate(metric: str, labels: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{labels}}}[$__rate_interval]))"


def _top(metric: str, labels: str, by: str) -> str:
    return f"topk(10, {_rate(metric, labels, by)})"


def _sum(metric: str, labels: str, by: str) -> str:
    return f"sum by ({by}) ({metric}{{{labels}}})"


def _max(metric: str, labels: str, by: str) -> str:
    return f"max by ({by}) ({metric}{{{labels}}})"


def _quantile(share: float, metric: str, labels: str, by: str) -> str:
    return f"histogram_quantile({share}, {_rate(metric, labels, f'le, {by}')})"


def _percentile(share: float, codes: str) -> str:
    labels = f'{_OF_NODE},request_code=~"{codes}",is_long_polling="false"'
    return _quantile(share, "rocketmq_rpc_latency_milliseconds_bucket", labels, "node_id")


VARIABLES: Final = (
    Variable("cluster", "label_values(rocketmq_topic_number, cluster)"),
    Variable("node", 'label_values(rocketmq_topic_number{cluster=~"$cluster"}, node_id)'),
    Variable("topic", f"label_values(rocketmq_messages_in_total{{{_OF_NODE}}}, topic)"),
    Variable("group", f"label_values(rocketmq_consumer_lag_messages{{{_OF_NODE}}}, consumer_group)"),
)

ROWS: Final = {
    "Overview": (
        Panel("Processes up", "none", (Query('sum(up{job="raymq"})', "up"),), "stat"),
        Panel(
            "Brokers", "none", (Query(f"count(rocketmq_broker_permission{{{_OF_NODE}}})", "up"),), "stat"
        ),
        Panel(
            "Unacknowledged messages", "short",
            (Query(f'sum(rocketmq_consumer_lag_messages{{{_OF_NODE},is_system="false"}})', "all"),), "stat",
        ),
        Panel(
            "Messages", "ops",
            (
                Query(_rate("rocketmq_messages_in_total", _OF_NODE, "node_id"), "in {{node_id}}"),
                Query(_rate("rocketmq_messages_out_total", _OF_NODE, "node_id"), "out {{node_id}}"),
            ),
        ),
        Panel(
            "Bytes", "Bps",
            (
                Query(_rate("rocketmq_throughput_in_total", _OF_NODE, "node_id"), "in {{node_id}}"),
                Query(_rate("rocketmq_throughput_out_total", _OF_NODE, "node_id"), "out {{node_id}}"),
            ),
        ),
        Panel(
            "Topics and groups", "none",
            (
                Query(_max("rocketmq_topic_number", _OF_NODE, "node_id"), "topics {{node_id}}"),
                Query(_max("rocketmq_consumer_group_number", _OF_NODE, "node_id"), "groups {{node_id}}"),
            ),
        ),
    ),
    "Topics": (
        Panel(
            "Messages in", "ops",
            (Query(_top("rocketmq_messages_in_total", _OF_TOPIC, "topic"), "{{topic}}"),),
        ),
        Panel(
            "Bytes in", "Bps", (Query(_top("rocketmq_throughput_in_total", _OF_TOPIC, "topic"), "{{topic}}"),)
        ),
        Panel(
            "Message size", "bytes",
            (Query(_quantile(0.99, "rocketmq_message_size_bucket", _OF_TOPIC, "topic"), "p99 {{topic}}"),),
        ),
    ),
    "Consumer groups": (
        Panel(
            "Unacknowledged messages", "short",
            (Query(_sum("rocketmq_consumer_lag_messages", _OF_GROUP, "consumer_group, topic"),
                   "{{consumer_group}} {{topic}}"),),
        ),
        Panel(
            "Age of the oldest unacknowledged message", "ms",
            (Query(_max("rocketmq_consumer_lag_latency_milliseconds", _OF_GROUP, "consumer_group, topic"),
                   "{{consumer_group}} {{topic}}"),),
        ),
        Panel(
            "Age of the oldest undelivered message", "ms",
            (Query(_max("rocketmq_consumer_queueing_latency_milliseconds", _OF_GROUP,
                        "consumer_group, topic"), "{{consumer_group}} {{topic}}"),),
        ),
        Panel(
            "Delivered and undelivered", "short",
            (
                Query(_sum("rocketmq_consumer_inflight_messages", _OF_GROUP, "consumer_group"),
                      "in flight {{consumer_group}}"),
                Query(_sum("rocketmq_consumer_ready_messages", _OF_GROUP, "consumer_group"),
                      "ready {{consumer_group}}"),
            ),
        ),
        Panel(
            "Messages out", "ops",
            (Query(_top("rocketmq_messages_out_total", _OF_GROUP, "consumer_group"), "{{consumer_group}}"),),
        ),
        Panel(
            "Dead letters", "short",
            (
                Query(_rate("rocketmq_send_to_dlq_messages_total", _OF_GROUP, "consumer_group"),
                      "{{consumer_group}} per second"),
                Query(_sum("raymq_dead_letters_pending", _OF_NODE, "node_id"), "kept by {{node_id}}"),
            ),
        ),
    ),
    "Requests": (
        Panel(
            "Sends", "ms",
            (
                Query(_percentile(0.5, "send_.*"), "p50 {{node_id}}"),
                Query(_percentile(0.99, "send_.*"), "p99 {{node_id}}"),
            ),
        ),
        Panel(
            "Requests", "reqps",
            (Query(_top("rocketmq_rpc_latency_milliseconds_count", _OF_NODE, "request_code"),
                   "{{request_code}}"),),
        ),
        Panel(
            "Error responses", "reqps",
            (Query(_rate("rocketmq_rpc_latency_milliseconds_count",
                         f'{_OF_NODE},response_code!~"success|pull_not_found|polling_timeout"',
                         "request_code, response_code"), "{{request_code}} {{response_code}}"),),
        ),
        Panel(
            "Connections", "none",
            (
                Query(_sum("rocketmq_producer_connections", _OF_NODE, "language, version"),
                      "producers {{language}} {{version}}"),
                Query(_sum("rocketmq_consumer_connections", _OF_NODE, "language, version"),
                      "consumers {{language}} {{version}}"),
            ),
        ),
        Panel(
            "Waiting requests", "none",
            (Query(_max("rocketmq_processor_watermark", _OF_NODE, "processor"), "{{processor}}"),),
        ),
        Panel(
            "Held pulls", "none", (Query(_sum("raymq_held_pulls", _OF_NODE, "node_id"), "{{node_id}}"),)
        ),
    ),
    "Store": (
        Panel(
            "Disk used", "percentunit",
            (Query(_max("raymq_disk_ratio", _OF_NODE, "node_id"), "{{node_id}}"),),
        ),
        Panel(
            "Not flushed, not dispatched", "bytes",
            (
                Query(_max("rocketmq_storage_flush_behind_bytes", _OF_NODE, "node_id"), "flush {{node_id}}"),
                Query(_max("rocketmq_storage_dispatch_behind_bytes", _OF_NODE, "node_id"),
                      "dispatch {{node_id}}"),
            ),
        ),
        Panel(
            "Age of the first message", "ms",
            (Query(_max("rocketmq_storage_message_reserve_time_milliseconds", _OF_NODE, "node_id"),
                   "{{node_id}}"),),
        ),
    ),
    "Timer and transactions": (
        Panel(
            "Timer messages", "short",
            (Query(_sum("rocketmq_timing_messages", _OF_TOPIC, "topic"), "{{topic}}"),),
        ),
        Panel(
            "Delay of the timer", "ms",
            (
                Query(_max("rocketmq_timer_enqueue_latency_milliseconds", _OF_NODE, "node_id"),
                      "enqueue {{node_id}}"),
                Query(_max("rocketmq_timer_dequeue_latency_milliseconds", _OF_NODE, "node_id"),
                      "dequeue {{node_id}}"),
            ),
        ),
        Panel(
            "Transactions", "short",
            (
                Query(_sum("rocketmq_half_messages", _OF_TOPIC, "topic"), "open {{topic}}"),
                Query(_rate("rocketmq_commit_messages_total", _OF_TOPIC, "topic"), "committed {{topic}}"),
                Query(_rate("rocketmq_rollback_messages_total", _OF_TOPIC, "topic"), "rolled back {{topic}}"),
            ),
        ),
    ),
    "Process": (
        Panel(
            "Lag of the event loop, 99 %", "s",
            (Query(_max("raymq_loop_lag_p99_seconds", _OF_NODE, "node_id"), "{{node_id}}"),),
        ),
        Panel("Flushes", "ops", (Query(_rate("raymq_flushes_total", _OF_NODE, "node_id"), "{{node_id}}"),)),
        Panel(
            "Failures", "short",
            (
                Query('sum by (node_id) (increase(raymq_background_task_failures_total[$__rate_interval]))',
                      "tasks {{node_id}}"),
                Query(_rate("raymq_requests_refused_total", _OF_NODE, "node_id"), "refused {{node_id}}"),
            ),
        ),
    ),
}  # fmt: skip
"""The panels by the title of their row."""


def expressions() -> list[str]:
    """Return the expressions of all panels."""
    return [query.expression for row in ROWS.values() for panel in row for query in panel.queries]


def board_text() -> str:
    """Return the board as JSON."""
    board = {
        "uid": "raymq",
        "title": "RayMQ",
        "tags": ["raymq", "rocketmq"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_data_source(), *map(_variable, VARIABLES)]},
        "panels": list(_panels()),
    }
    return json.dumps(board, indent=1, ensure_ascii=False) + "\n"


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    top = number = 0
    width = _WIDTH // _PER_ROW
    for title, panels in ROWS.items():
        number += 1
        yield {
            "id": number, "type": "row", "title": title, "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1}, "panels": [],
        }  # fmt: skip
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            place = {"x": index % _PER_ROW * width, "y": top + index // _PER_ROW * _HEIGHT}
            yield _panel(panel, number, {**place, "w": width, "h": _HEIGHT})
        top += -(-len(panels) // _PER_ROW) * _HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": _SOURCE,
            "expr": each.expression,
            "legendFormat": each.legend,
        }
        for index, each in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {},
        "targets": targets,
    }
