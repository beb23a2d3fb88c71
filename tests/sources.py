"""Parsed source files, for tests that read code."""

from __future__ import annotations

import ast
from pathlib import Path


def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file.

    CPython 3.11 counts the recursion of its parser once per process (gh-106905): it raises SystemError
    if another thread parses meanwhile, as printing a traceback does. It is then repeated.
    """
    for _ in range(100):
        try:
            return ast.parse(path.read_text())
        except SystemError:
            continue
    return ast.parse(path.read_text())
