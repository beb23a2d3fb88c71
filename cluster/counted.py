"""Counts in sentences: "1 message", "2,000 messages"."""


def counted(count: int, noun: str) -> str:
    """Return `count` with the noun in the singular or plural."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
