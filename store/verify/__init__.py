"""Is everything in a store as its log makes it? Found by making it again in memory, and comparing."""

from store.verify.findings import Finding, Report
from store.verify.run import verify

__all__ = ["Finding", "Report", "verify"]
