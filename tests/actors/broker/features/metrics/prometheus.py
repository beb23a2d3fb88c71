"""Runs Debian's Prometheus; if it is not installed, its package is unpacked into a temporary directory."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    address: str

    def asked(self, path: str, **parameters: str) -> dict[str, Any]:
        """Return the response of its API."""
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            text = error.read()
        found: dict[str, Any] = json.loads(text)
        return found

    def number(self, expression: str) -> float | None:
        """Return the value of an expression with one result; None without one, or while it starts."""
        try:
            result = self.asked("query", query=expression)["data"]["result"]
        except (urllib.error.URLError, json.JSONDecodeError):
            return None
        return float(result[0]["value"][1]) if result else None


@contextmanager
def running_prometheus(root: Path, config: dict[str, Any]) -> Iterator[Prometheus]:
    """Run it with a configuration, except for its intervals, which are a second; it may still be starting."""
    root.mkdir()
    executable = shutil.which("prometheus") or _unpacked(root / "package")
    config |= {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
    (root / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    program = subprocess.Popen(
        [
            executable, f"--config.file={root / 'prometheus.yml'}", f"--storage.tsdb.path={root / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stderr=(root / "log").open("w"),
    )  # fmt: skip
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        program.terminate()
        program.wait()


def _unpacked(folder: Path) -> str:
    """Download the package, unpack it without installing it, and return the path of its program."""
    folder.mkdir()
    folder.chmod(0o777)  # apt writes as a user of its own
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=folder, check=True)
    subprocess.run(["dpkg-deb", "-x", *folder.glob("*.deb"), folder / "unpacked"], check=True)
    return str(folder / "unpacked" / "usr" / "bin" / "prometheus")
