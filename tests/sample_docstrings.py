"""Print a random sample of docstrings, error messages or log events, to review their language.

uv run python -m tests.sample_docstrings 60 7
uv run python -m tests.sample_docstrings 10 7 --kind errors
uv run python -m tests.sample_docstrings 10 7 --kind events
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.sources import parsed

REPO = Path(__file__).parent.parent
FOLDERS = ("store", "actors", "cluster", "jobs")
LOG_METHODS = {"debug", "info", "warning", "error", "exception"}
Found = tuple[int, str]


def docstrings(tree: ast.Module) -> Iterator[Found]:
    """Yield line and text of each docstring, including those of attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield getattr(node, "lineno", 1), f"{getattr(node, 'name', '(module)')}: {text}"
        if isinstance(node, ast.Module | ast.ClassDef):
            for before, after in pairwise(node.body):
                if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                    text = after.value.value if isinstance(after.value, ast.Constant) else None
                    if isinstance(text, str):
                        yield before.lineno, f"{ast.unparse(before)}: {text}"


def errors(tree: ast.Module) -> Iterator[Found]:
    """Yield line and source of each raised exception that has a message."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts = [part for argument in node.exc.args for part in ast.walk(argument)]
            if any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts):
                yield node.lineno, ast.unparse(node.exc)


def events(tree: ast.Module) -> Iterator[Found]:
    """Yield line and source of each log call."""
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_call and node.func.attr in LOG_METHODS and node.args:
            event = node.args[0]
            if isinstance(event, ast.Constant) and isinstance(event.value, str):
                yield node.lineno, ast.unparse(node)


KINDS = {"docstrings": docstrings, "errors": errors, "events": events}


def sample(count: int, seed: int, kind: str) -> list[str]:
    """Return `count` random texts of `kind`, each at most once; equal seeds give equal samples."""
    found = [
        f"{path.relative_to(REPO).as_posix()}:{line}\n{text}\n"
        for folder in FOLDERS
        for path in sorted((REPO / folder).rglob("*.py"))
        for line, text in KINDS[kind](parsed(path))
    ]
    return random.Random(seed).sample(found, min(count, len(found)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("count", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--kind", choices=KINDS, default="docstrings")
    options = parser.parse_args()
    sys.stdout.write("\n".join(sample(options.count, options.seed, options.kind)))
