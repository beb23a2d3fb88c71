"""The Grafana board and the alerts use metrics that exist on our page and RocketMQ's."""

from __future__ import annotations

import re
from pathlib import Path

from tests.actors.broker.brokers import Peer, settings_of, with_broker
from tests.actors.broker.features.metrics.grafana import ALERTS, BOARD, board_expressions
from tests.actors.broker.features.metrics.scraped import scrape

REPO = Path(__file__).parents[5]
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
OF_LAKES = {
    "raymq_lake_behind_seconds",
    "raymq_lake_failed_rounds_total",
    "raymq_lake_failures",
    "raymq_lake_files",
    "raymq_lake_lost_messages",
    "raymq_lake_rows",
}
"""Metrics of the processes of lakes only."""
_METRIC = re.compile(r"\b(?:rocketmq|raymq)_\w+")


def used() -> set[str]:
    """Return the metrics in all expressions, without the suffixes of histograms."""
    variables = [each["query"] for each in BOARD["templating"]["list"] if each["type"] == "query"]
    queries = [*board_expressions(), *(rule["expr"] for rule in ALERTS), *map(str, variables)]
    return {re.sub(r"_(bucket|count|sum)$", "", name) for query in queries for name in _METRIC.findall(query)}


def test_all_metrics_exist_on_the_page_of_a_broker(tmp_path: Path) -> None:
    found: set[str] = set()

    async def story(peer: Peer) -> None:
        families = await scrape(peer.metrics.port)
        found.update(f"{name}_total" if each.type == "counter" else name for name, each in families.items())

    with_broker(story, settings_of(tmp_path, metrics_port=0))
    assert used() - METRICS_OF_GROUPS - OF_LAKES <= found


def test_all_metrics_of_rocketmq_exist_on_its_page() -> None:
    page = ROCKETMQ.read_text()
    missing = {name for name in used() if name.startswith("rocketmq_") and f"# TYPE {name} " not in page}
    assert missing == RARE


def test_board_shows_the_tables_of_lakes_by_topic() -> None:
    shown = " ".join(board_expressions())
    missing = {name for name in OF_LAKES if name not in shown}
    assert missing == {"raymq_lake_failed_rounds_total"}, "it has no topic, and an alert"


def test_board_has_unique_ids_and_places() -> None:
    panels = BOARD["panels"]
    assert len({each["id"] for each in panels}) == len(panels) > 30
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len(set(places)) == len(places)


def test_each_alert_is_described_for_operators() -> None:
    text = (REPO / "docs" / "operating.md").read_text()
    missing = [rule["alert"] for rule in ALERTS if f"### {rule['alert']}\n" not in text]
    assert not missing
