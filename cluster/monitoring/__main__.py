"""Write `configs/grafana/raymq.json` and `alerts.yaml`: `uv run python -m cluster.monitoring`."""

from cluster.monitoring.alerts import ALERTS, alerts_text
from cluster.monitoring.board import BOARD, board_text

if __name__ == "__main__":
    BOARD.write_text(board_text())
    ALERTS.write_text(alerts_text())
