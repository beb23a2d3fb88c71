"""The nameserver as a Ray actor."""

from __future__ import annotations
