"""Errors of streaming reads. Each error text contains the remedy."""

from __future__ import annotations

from jobs.job_errors import JobError


class CheckpointMismatch(JobError, ValueError):
    """The checkpoint of a query belongs to another topic, cluster or query."""


class StreamFailed(JobError):
    """The planner of a stream failed. The error text contains the planner's error."""
