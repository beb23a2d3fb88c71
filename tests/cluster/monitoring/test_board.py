"""The Grafana board and the alerts: current files, and metrics that exist on our page and RocketMQ's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from cluster.monitoring.alerts import ALERTS, ALL, alerts_text
from cluster.monitoring.board import BOARD, VARIABLES, board_text, expressions
from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.metrics.scraped import scrape

REPO = Path(__file__).parents[3]
ROCKETMQ = REPO / "tests" / "fixtures" / "rocketmq-5.5.0-metrics.txt"
RARE = {
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_half_messages",
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
}
"""RocketMQ's metrics that have no sample on its page, because there were no dead letters and
transactions."""
METRICS_OF_GROUPS = {"raymq_raft_is_leader", "raymq_raft_voters", "raymq_raft_active_voters"}
"""Metrics of the replicas of Raft groups only."""
_METRIC = re.compile(r"\b(?:rocketmq|raymq)_\w+")


def used() -> set[str]:
    """Return the metrics in all expressions, without the suffixes of histograms."""
    queries = [*expressions(), *(each.expression for each in ALL), *(each.query for each in VARIABLES)]
    return {re.sub(r"_(bucket|count|sum)$", "", name) for query in queries for name in _METRIC.findall(query)}


def test_files_are_current() -> None:
    hint = "run `uv run python -m cluster.monitoring`"
    assert BOARD.read_text() == board_text(), hint
    assert ALERTS.read_text() == alerts_text(), hint


def test_all_metrics_exist_on_the_page_of_a_broker(tmp_path: Path) -> None:
    found: set[str] = set()

    async def story(peer: Peer) -> None:
        families = await scrape(peer.broker.graph.metrics.port)
        found.update(f"{name}_total" if each.type == "counter" else name for name, each in families.items())

    with_broker(story, settings_of(tmp_path, metrics_port=0))
    assert used() - METRICS_OF_GROUPS <= found


def test_all_metrics_of_rocketmq_exist_on_its_page() -> None:
    page = ROCKETMQ.read_text()
    missing = {name for name in used() if name.startswith("rocketmq_") and f"# TYPE {name} " not in page}
    assert missing == RARE


def test_board_has_unique_ids_and_places() -> None:
    panels = json.loads(board_text())["panels"]
    assert len({each["id"] for each in panels}) == len(panels) > 30
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len(set(places)) == len(places)


def test_each_alert_is_described_for_operators() -> None:
    text = (REPO / "docs" / "operating.md").read_text()
    rules = yaml.safe_load(alerts_text())["groups"][0]["rules"]
    missing = [rule["alert"] for rule in rules if f"### {rule['alert']}\n" not in text]
    assert not missing
