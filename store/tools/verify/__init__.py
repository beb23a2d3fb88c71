"""Is everything in a store as its log makes it? Found by making it again in memory, and comparing."""

from store.tools.verify.findings import Finding, Report
from store.tools.verify.run import verify

__all__ = ["Finding", "Report", "verify"]
