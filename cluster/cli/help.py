"""What pages of help have in common."""

from __future__ import annotations


def examples(*lines: str) -> str:
    """The end of a command's page: how it is called."""
    return "Examples:\n\n" + "\n\n".join(lines)
