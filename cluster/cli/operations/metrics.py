"""`raymq metrics`: configuration for Prometheus."""

from __future__ import annotations

import os
from typing import Any

import typer

from cluster.cli.console import exiting_on_launch_errors
from cluster.cli.options import Overrides, Topology, TopologyOption, examples, topology_file

app = typer.Typer(no_args_is_help=True, help="Metrics: print a configuration for Prometheus.")
RAY_FILE = "ray/prom_metrics_service_discovery.json"
"""File below Ray's temporary directory in which Ray lists the addresses of its own metrics."""


@app.callback()
def _group() -> None:
    pass


@app.command(
    epilog=examples("raymq metrics config > prometheus.yml", "raymq metrics config configs/local.yaml")
)
def config(topology: Topology = None, option: TopologyOption = None, overrides: Overrides = None) -> None:
    """Print a configuration for Prometheus that scrapes the cluster and Ray.

    Prometheus reads the addresses from the file that `raymq up` keeps. Run Prometheus on the node of the
    cluster, or set `metrics_host` and `metrics_token_file`.
    """
    import yaml

    from cluster.control.topology.topology_file import load_topology

    file = topology_file(topology, option)
    with exiting_on_launch_errors():
        given = load_topology(file, overrides or [])
    typer.echo(yaml.safe_dump(_config(given), sort_keys=False), nl=False)


def _config(topology: Any) -> dict[str, Any]:
    from cluster.control.scrape_targets import FILE_NAME
    from cluster.control.session.ray_head import temporary_directory
    from cluster.control.topology.topology_file import SHIPPED
    from cluster.paths import home_of

    job: dict[str, Any] = {
        "job_name": "raymq",
        "file_sd_configs": [{"files": [str(home_of(topology.cluster) / FILE_NAME)]}],
    }
    if token := topology.broker_settings.get("metrics_token_file"):
        job["authorization"] = {"type": "Bearer", "credentials_file": str(token)}
    ray = str(temporary_directory(os.environ) / RAY_FILE)
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [str(SHIPPED / "grafana" / "alerts.yaml")],
        "scrape_configs": [job, {"job_name": "ray", "file_sd_configs": [{"files": [ray]}]}],
    }
