"""Apache's end-to-end tests of the Java SDK 5.0.3 (rocketmq-e2e, java/e2e), run through a gateway with TLS.

    git clone https://github.com/apache/rocketmq-e2e
    RAYMQ_ROCKETMQ_E2E=$PWD/rocketmq-e2e uv run pytest -m extended tests/compat/sdk/test_rocketmq_e2e.py

They also use mqadmin's classes, through the remoting port. All 119 tests are expected to pass.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.proxy import RayMQWithGateway
from tests.eventually import TIME_SCALE

pytestmark = pytest.mark.extended

VARIABLE = "RAYMQ_ROCKETMQ_E2E"
TIMEOUT_S = 900 * TIME_SCALE
COUNT = 119
# The suite is for JDK 8: its lombok needs the compiler's packages, its JVM option is not known any more.
COMPILER = ("code", "comp", "file", "jvm", "main", "model", "parser", "processing", "tree", "util")
ENVIRONMENT = {
    "MAVEN_OPTS": " ".join(f"--add-opens=jdk.compiler/com.sun.tools.javac.{x}=ALL-UNNAMED" for x in COMPILER),
    "JAVA_TOOL_OPTIONS": "-XX:+IgnoreUnrecognizedVMOptions",
    "cluster": "DefaultCluster",
}


def suite(into: Path) -> Path:
    """Return a copy of the suite, in which Maven builds; skip the test without a checkout or Maven."""
    checkout = os.environ.get(VARIABLE)
    if not checkout:
        pytest.skip(f"{VARIABLE} is not set: clone apache/rocketmq-e2e and name its folder")
    if shutil.which("mvn") is None:
        pytest.skip("mvn is not on the PATH: install Maven and JDK 17")
    return Path(shutil.copytree(Path(checkout) / "java", into / "java"))


def test_all_of_rocketmqs_end_to_end_tests_pass(tmp_path: Path) -> None:
    folder = suite(tmp_path)
    with RayMQWithGateway(tmp_path / "raymq", has_tls=True) as raymq:
        command = [
            "mvn", "-B", "-pl", "e2e", "test",
            f"-DnamesrvAddr={raymq.nameserver_address}", f"-DendPoint={raymq.gateway_address}",
        ]  # fmt: skip
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **ENVIRONMENT}, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    passed = r"^\[\w+\] Tests run: (\d+), Failures: 0, Errors: 0, Skipped: 0$"
    results = re.findall(passed, done.stdout, re.MULTILINE)
    failures = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
    assert (done.returncode, results) == (0, [str(COUNT)]), "\n".join(failures[:100])
