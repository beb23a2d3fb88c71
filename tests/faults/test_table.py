"""Every test that docs/faults.md names exists, and every fault test is listed in docs/faults.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.sources import parsed

REPO = Path(__file__).parent.parent.parent
TABLE = (REPO / "docs" / "faults.md").read_text()
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TABLE)

pytestmark = [pytest.mark.faults]


def names_of_tests(path: Path) -> set[str]:
    """Names of the test functions, and of the state machines that are assigned to a name."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = list(ast.walk(parsed(path)))
    names = {node.name for node in nodes if isinstance(node, functions)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return {name for name in names if name.startswith("test_")}


def test_every_row_of_faults_page_names_an_existing_test() -> None:
    rows = [row for row in TABLE.splitlines() if row.startswith("|")]
    rows = [row for row in rows if not row.startswith(("|---", "| fault |"))]
    assert len(rows) == len(NAMED) > 40, "each row must name one test in its last column"
    missing = [f"{path}::{name}" for path, name in NAMED if name not in names_of_tests(REPO / path)]
    assert not missing, missing


def test_every_fault_test_is_listed_on_faults_page() -> None:
    here = {
        f"{path.relative_to(REPO)}::{name}"
        for path in Path(__file__).parent.rglob("test_*.py")
        if path.name != "test_table.py"
        for name in names_of_tests(path)
    }
    missing = sorted(here - {f"{path}::{name}" for path, name in NAMED})
    assert not missing, missing
