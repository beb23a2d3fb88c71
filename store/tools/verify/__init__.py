"""Verify a store: derive consume queues and index from the CommitLog, and compare them with the files."""

from store.tools.verify.findings import Finding, Report
from store.tools.verify.run import verify

__all__ = ["Finding", "Report", "verify"]
