"""Pure-Python equivalents of kernels that only tests use are not part of the product."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.sources import parsed

KERNELS = Path("store/kernels")
PRODUCT = ("store", "actors", "jobs", "cluster")


def test_kernels_have_no_equivalents_that_only_tests_use() -> None:
    names = {
        node.name
        for path in KERNELS.glob("*.py")
        for node in parsed(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    }
    twins = {name for name in names if name.startswith(("plain_", "Plain")) or name.endswith("_plain")}
    texts = [path.read_text() for root in PRODUCT for path in Path(root).rglob("*.py")]
    unused = {name for name in twins if sum(name in text for text in texts) < 2}
    assert not unused
