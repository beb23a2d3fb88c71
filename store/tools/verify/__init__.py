"""Verify a store: derive queues and index from the log again, in memory, and compare them with the files."""

from store.tools.verify.findings import Finding, Report
from store.tools.verify.run import verify

__all__ = ["Finding", "Report", "verify"]
