"""Verify a store: derive queues and index from the CommitLog again, and compare the files with them."""

from store.tools.verify.findings import Finding, Report
from store.tools.verify.run import verify

__all__ = ["Finding", "Report", "verify"]
