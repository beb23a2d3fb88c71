"""README and the pages of docs/ run as a reader would type them, on a fresh cluster of `cluster.standalone`.

A block of Python is a program. The lines of a block of commands run one after the other, in an empty
directory with `configs/`. Each must succeed within a time limit, so that none hangs. NOT_RUN lists
what a test cannot run, with the reason.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.eventually import LIMIT_S

REPO = Path(__file__).parent.parent
ON_RAY = "needs a cluster on Ray: tests/cluster/test_ray_*.py run these commands"
OWN_FILE = "a file of the reader"
MINUTES = "takes minutes: tests/benchmarks and tests/cluster/lab/bench run it with less load"
NOT_RUN = {
    # Beginnings of lines, or of blocks of Python.
    "uv run raymq demo": "takes minutes: tests/cluster/lab/demo/test_demo.py",
    "uv run pytest": "would run this test",
    r"(uv run )?raymq (up|down|status|restart|drain|promote|migrate|transfer|logs)\b": ON_RAY,
    "export RAY_AUTH_MODE": ON_RAY,
    "uv run ray job submit": ON_RAY,
    "raymq replica": "needs several replicas on Ray: tests/cluster/test_ray_replicas.py, test_ray_raft.py",
    "(cp|mv) ": "a store of a stopped cluster on Ray",
    "(kubectl|helm) ": "needs Kubernetes: tests/kube renders the chart and runs its pods",
    "uv(x| build) ": "builds and installs: tests/test_wheels.py",
    "uv sync": "changes the environment of this test",
    "raymq store (verify|messages)": "a copy of a store: tests/store and tests/cluster/test_ray_replicas.py",
    "raymq send orders --json-lines": "the file of the line before it",
    "raymq metrics config": ON_RAY,
    "prometheus ": "Prometheus is not a requirement of the tests",
    "uv run raymq bench omb": OWN_FILE,
    "uv run python -m benchmarks.": "takes 20 to 40 minutes, and Maven",
    "raymq bench ": MINUTES,
    "uv run --with rocketmq-python-client": "downloads a package: tests/compat/sdk/test_client_page.py",
    "uv run raymq dev": "a second cluster: tests/cluster/cli/test_dev.py",
    "curl ": "needs the console of the first block: tests/cluster/console/test_api.py",
    "uv run raymq reindex store": "a stopped store: tests/jobs/reindex",
    "# thumbnails.py": ON_RAY,
    "# producer.py": "downloads a package: tests/compat/sdk/test_client_page.py",
}
SERVERS = {"uv run raymq console": "http://"}
"""Commands that serve until Ctrl-C, and what they print when they do."""
SPARK = "from jobs import"
"""Programs with it start Spark, which takes longer than the rest of the page: they are extended."""
RUN_ELSEWHERE = {"docs/extending.md": "tests/test_extending.py"}
PREPARED = {
    "docs/reindex.md": (
        "raymq topic create orders",
        """raymq send orders '{"customer": {"id": "c-17"}}' --key order-1""",
    ),
}
"""Commands that make what a page says to be there."""
LANGUAGES = ("console", "sh", "python")
OTHERS = {
    "mermaid": "pictures",
    "text": "pictures and formats",
    "yaml": "parts of topologies and settings",
    "dockerfile": "an image",
    "java": "tests/compat/sdk/test_client_page.py",
    "js": "tests/compat/sdk/test_client_page.py",
    "go": "tests/compat/sdk/test_client_page.py",
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [str(each.relative_to(REPO)) for root in (REPO, REPO / "docs") for each in sorted(root.glob("*.md"))]


class Block(NamedTuple):
    """A block of a page; `line` is the number of its first line."""

    page: str
    line: int
    language: str
    text: str

    @property
    def steps(self) -> list[str]:
        """The program, or the commands without their comments."""
        if self.language == "python":
            return [self.text]
        lines = (line.removeprefix("$ ") for line in self.text.replace("\\\n", "").splitlines())
        return [command for line in lines if (command := re.sub(r"(^|\s+)# .*", "", line))]


def blocks_of(page: str) -> list[Block]:
    text = (REPO / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 2, found[1], found[2])
        for found in BLOCK.finditer(text)
    ]


def reason_not_to_run(step: str) -> str | None:
    return next((why for start, why in NOT_RUN.items() if re.match(start, step)), None)


@dataclass
class Reader:
    """Types the blocks of a page, in one directory."""

    address: str
    stores: Path
    directory: Path

    def run(self, block: Block) -> None:
        for step in block.steps:
            if reason_not_to_run(step) is None:
                self.type(f"{block.page}:{block.line}", step, is_python=block.language == "python")

    def type(self, where: str, step: str, *, is_python: bool = False) -> None:
        typed = self.typed(step)
        arguments = (
            [sys.executable, "-c", typed]
            if is_python
            else ["bash", "-c", f'uv() {{ shift; "$@"; }}; {typed}']
        )
        process = subprocess.Popen(
            arguments, cwd=self.directory, env=self._environment(), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        served = next((text for start, text in SERVERS.items() if step.startswith(start)), None)
        try:
            if served is not None:
                assert process.stdout is not None
                lines = iter(process.stdout.readline, "")
                assert any(served in line for line in lines), f"{where}: {step} has ended"
                os.killpg(process.pid, signal.SIGINT)
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"{where}: does not end: {step}\n{output}")
        assert process.returncode == 0, f"{where}: exit code {process.returncode}: {step}\n{output}"
        assert "Traceback" not in output, f"{where}: {step}\n{output}"

    def typed(self, step: str) -> str:
        """Return a step with the address and the directories of this test."""
        for written, here in {
            "127.0.0.1:9876": self.address,
            "~/.raymq/DefaultCluster/store": str(self.stores),
            " DIR": f" {self.stores / 'broker-a-0'}",
            "/data/": f"{self.directory}/data/",
            "--port 8090": "--port 0",
        }.items():
            step = step.replace(written, here)
        return step

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        return {**os.environ, "PATH": path, "PYTHONPATH": str(REPO), "RAYMQ_NAMESERVERS": self.address}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    stores, directory = tmp_path / "stores", tmp_path / "reader"
    directory.mkdir()
    (directory / "configs").symlink_to(REPO / "configs")
    process = subprocess.Popen(
        [sys.executable, "-m", "cluster.standalone", "--store-root", str(stores), "--nameserver-port", "0",
         "--broker-port", "0", "--store", "commit_log_file_bytes=16777216", "--store", "index_slots=5000",
         "--store", "index_entries=200000"],
        cwd=REPO, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = next(line for line in iter(process.stdout.readline, "") if line.startswith("READY "))
        yield Reader(ready.split()[1], stores, directory)
    finally:
        process.terminate()
        process.wait(LIMIT_S)


@pytest.mark.slow
def test_readme_runs_block_by_block_as_it_stands(reader: Reader) -> None:
    for block in blocks_of("README.md"):
        if block.language in LANGUAGES and SPARK not in block.text:
            reader.run(block)


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.parametrize("page", [each for each in PAGES if each not in RUN_ELSEWHERE])
def test_page_runs_block_by_block_as_it_stands(page: str, reader: Reader) -> None:
    for command in PREPARED.get(page, ()):
        reader.type(page, command)
    for block in blocks_of(page):
        if block.language in LANGUAGES:
            reader.run(block)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_of_a_page_have_no_syntax_errors(page: str) -> None:
    """Also those that no test runs; options of `raymq` are checked by tests/test_docs.py."""
    for block in blocks_of(page):
        for step in block.steps:
            if block.language == "python":
                compile(step, f"{page}:{block.line}", "exec")
            elif block.language in LANGUAGES:
                checked = subprocess.run(
                    ["bash", "-n", "-c", step], capture_output=True, text=True, check=False
                )
                assert checked.returncode == 0, f"{page}:{block.line}: {checked.stderr}"


def test_every_block_has_a_known_language() -> None:
    assert {block.language for page in PAGES for block in blocks_of(page)} == {*LANGUAGES, *OTHERS}


def test_every_reason_not_to_run_a_line_is_needed() -> None:
    steps = [
        step
        for page in PAGES
        for block in blocks_of(page)
        if block.language in LANGUAGES
        for step in block.steps
    ]
    assert [start for start in NOT_RUN if not any(re.match(start, step) for step in steps)] == []
