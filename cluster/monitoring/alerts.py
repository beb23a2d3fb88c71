"""Alerts of a cluster, as a rule file of Prometheus.

An expression with metrics of RocketMQ only works for Apache RocketMQ's brokers too. `docs/operating.md` says
what to do on each alert.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import yaml

GRAFANA: Final = Path(__file__).parents[2] / "configs" / "grafana"
ALERTS: Final = GRAFANA / "alerts.yaml"
RUNBOOK: Final = "docs/operating.md"


class Alert(NamedTuple):
    """One alert. It fires when `expression` has had results for `after`."""

    name: str
    expression: str
    after: str
    severity: str
    summary: str


ALL: Final = (
    Alert(
        "RaymqProcessDown", 'up{job="raymq"} == 0', "1m", "critical",
        "{{ $labels.raymq_actor }} at {{ $labels.instance }} does not serve its metrics.",
    ),
    Alert(
        "RocketmqConsumerLagOld",
        "max by (cluster, topic, consumer_group) "
        '(rocketmq_consumer_lag_latency_milliseconds{is_system="false"}) > 300000',
        "5m", "warning",
        "The oldest message of {{ $labels.topic }} that {{ $labels.consumer_group }} has not acknowledged is "
        "older than 5 minutes.",
    ),
    Alert(
        "RocketmqConsumersMissing",
        'sum by (cluster, consumer_group) (rocketmq_consumer_lag_messages{is_system="false"}) > 0 '
        "unless on (cluster, consumer_group) "
        "sum by (cluster, consumer_group) (rocketmq_consumer_connections)",
        "10m", "warning",
        "{{ $labels.consumer_group }} has {{ $value }} unacknowledged messages and no connected member.",
    ),
    Alert(
        "RocketmqDeadLetters",
        "sum by (cluster, topic, consumer_group) (increase(rocketmq_send_to_dlq_messages_total[10m])) > 0",
        "0m", "warning",
        "{{ $labels.consumer_group }} could not process messages of {{ $labels.topic }}.",
    ),
    Alert(
        "RocketmqSendsFail",
        "sum by (cluster, node_id, response_code) (rate(rocketmq_rpc_latency_milliseconds_count"
        '{request_code=~"send_.*",response_code!="success"}[5m])) > 1',
        "5m", "critical",
        "{{ $labels.node_id }} answers sends with {{ $labels.response_code }}.",
    ),
    Alert(
        "RocketmqFlushBehind", "rocketmq_storage_flush_behind_bytes > 64 * 1024 * 1024", "2m", "critical",
        "{{ $labels.node_id }} has {{ $value | humanize1024 }}B that are not on the disk: the disk is slow.",
    ),
    Alert(
        "RocketmqDispatchBehind", "rocketmq_storage_dispatch_behind_bytes > 64 * 1024 * 1024", "2m",
        "warning", "Consumers of {{ $labels.node_id }} get messages late.",
    ),
    Alert(
        "RocketmqTimerLate", "rocketmq_timer_dequeue_latency_milliseconds > 60000", "2m", "warning",
        "{{ $labels.node_id }} delivers timer messages more than a minute late.",
    ),
    Alert(
        "RaymqDiskFull", "raymq_disk_ratio > 0.85", "5m", "critical",
        "The disk of {{ $labels.node_id }} is {{ $value | humanizePercentage }} full.",
    ),
    Alert(
        "RaymqRaftBareMajority",
        "raymq_raft_is_leader == 1 and raymq_raft_active_voters <= floor(raymq_raft_voters / 2) + 1", "1m",
        "critical", "The Raft group of {{ $labels.node_id }} does not survive the loss of another replica.",
    ),
    Alert(
        "RaymqLogDamaged", "raymq_log_holes > 0", "0m", "critical",
        "The log of {{ $labels.node_id }} lacks {{ $value }} ranges.",
    ),
    Alert(
        "RaymqTaskFailures", "increase(raymq_background_task_failures_total[10m]) > 0", "0m", "warning",
        "A background task of {{ $labels.node_id }} has failed.",
    ),
    Alert(
        "RaymqLoopSlow", "raymq_loop_lag_p99_seconds > 0.2", "5m", "warning",
        "The event loop of {{ $labels.node_id }} is late: requests wait.",
    ),
    Alert(
        "RaymqMetricsDropped", "sum by (cluster, node_id, metric) (raymq_metrics_dropped_series) > 0", "5m",
        "warning", "{{ $labels.node_id }} does not show all series of {{ $labels.metric }}.",
    ),
)  # fmt: skip
"""All alerts."""


def alerts_text() -> str:
    """Return the rule file."""
    rules = [
        {
            "alert": each.name,
            "expr": each.expression,
            "for": each.after,
            "labels": {"severity": each.severity},
            "annotations": {"summary": each.summary, "runbook": f"{RUNBOOK}#{each.name.lower()}"},
        }
        for each in ALL
    ]
    head = "# Written by `uv run python -m cluster.monitoring`.\n"
    return head + yaml.safe_dump({"groups": [{"name": "raymq", "rules": rules}]}, sort_keys=False, width=110)
