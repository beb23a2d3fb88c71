"""The errors of streams. Each message contains the remedy."""

from __future__ import annotations

from jobs.job_errors import JobError


class CheckpointMismatch(JobError, ValueError):
    """A checkpoint belongs to another topic, cluster or query."""


class StreamFailed(JobError):
    """The planner of a stream failed, so the query ends with its reason."""
