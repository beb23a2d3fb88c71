"""Runs `raymq` commands against a cluster in this process."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from cluster.cli.main import build
from cluster.client import Producer
from tests.cluster.client.conftest import Cluster

_numbers = itertools.count()


@dataclass
class Raymq:
    """Runs `raymq` with arguments against the cluster."""

    cluster: Cluster

    def run(self, *arguments: str, given: str | bytes | None = None) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error."""
        named = [*arguments, "--nameserver", self.cluster.address]
        result = CliRunner().invoke(build(named), named, input=given)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    def ok(self, *arguments: str, given: str | bytes | None = None) -> Any:
        """Return the decoded JSON output; a list if there are several lines."""
        code, out, errors = self.run(*arguments, given=given)
        assert (code, errors) == (0, ""), (arguments, errors)
        values = [json.loads(line) for line in out.splitlines()]
        return values[0] if len(values) == 1 else values

    def shown(self, *arguments: str) -> str:
        """Return the output on a terminal."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FORCE_COLOR", "1")
            patch.setenv("COLUMNS", "200")
            code, out, errors = self.run(*arguments)
        assert (code, errors) == (0, "")
        return out

    def refused(self, *arguments: str, code: int = 1, given: str | None = None) -> str:
        """Return the one-line error of a failing command."""
        ended, out, errors = self.run(*arguments, given=given)
        assert (ended, out) == (code, "")
        assert errors.count("\n") == 1
        return errors.strip()

    def filled(self, count: int = 0, queues: int = 2) -> str:
        """Create a topic on both brokers with messages `0`, `1`, … in queue 0 of broker a."""
        topic = f"cli-{next(_numbers)}"
        self.ok("topic", "create", topic, "--queues", str(queues))
        with Producer(self.cluster.address, group="cli-test") as producer:
            queue = producer.queues(topic)[0] if count else None
            for number in range(count):
                producer.send(topic, f"{number}", tags="ab"[number % 2], keys=f"k{number}", queue=queue)
        return topic


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers, a and b, shared by all tests of the commands."""
    made = Cluster(tmp_path_factory.mktemp("cli"))
    yield made
    made.stop()


@pytest.fixture
def raymq(cluster: Cluster) -> Raymq:
    """Return a runner of `raymq` commands."""
    return Raymq(cluster)
