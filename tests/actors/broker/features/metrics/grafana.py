"""The Grafana board and the alerts of `configs/grafana`."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

GRAFANA = Path(__file__).parents[5] / "configs" / "grafana"
ALERTS_FILE = GRAFANA / "alerts.yaml"
BOARD = json.loads((GRAFANA / "raymq.json").read_text())
ALERTS = yaml.safe_load(ALERTS_FILE.read_text())["groups"][0]["rules"]


def board_expressions() -> list[str]:
    """Return the expressions of all panels."""
    return [query["expr"] for panel in BOARD["panels"] for query in panel.get("targets", ())]
