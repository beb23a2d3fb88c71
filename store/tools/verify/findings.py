"""The result of a verification: findings (damage) and notes (observations that are not damage)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FINDINGS_MAX = 100_000


class Finding(NamedTuple):
    """Damage of `size_bytes` bytes at byte position `place` of a file; −1 means the whole file."""

    path: str
    place: int
    size_bytes: int
    kind: str
    """Kind of the damage: one of file, hole, log, unit, index, checkpoint, notes and config."""
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Return the object that `raymq store verify --json` prints for a finding."""
        return {
            "kind": self.kind,
            "path": self.path,
            "place": self.place if self.place >= 0 else None,
            "bytes": self.size_bytes,
            "reason": self.reason,
        }


@dataclass
class Report:
    """The result of a verification. Paths of files in the store are relative to its directory `root`."""

    root: Path
    findings: list[Finding] = field(default_factory=list)
    omitted: int = 0
    """Number of findings beyond the first 100,000, which are not listed."""
    notes: list[str] = field(default_factory=list)
    """Observations that are not damage: a broker is running, or the next start will repair a file."""
    counts: dict[str, int] = field(default_factory=dict)
    writer_pid: int | None = None
    """PID of the process that has the store open; None if the store is not open."""

    def add(self, path: Path | str, place: int, size_bytes: int, kind: str, reason: str) -> None:
        """Add a finding to the report.

        The finding is merged with the last one if both have the same reason and adjacent byte ranges in one
        file.
        """
        name = self.name(path)
        last = self.findings[-1] if self.findings else None
        if (
            last is not None
            and (last.path, last.kind, last.reason) == (name, kind, reason)
            and 0 <= place == last.place + last.size_bytes
        ):
            self.findings[-1] = last._replace(size_bytes=last.size_bytes + size_bytes)
        elif len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(name, place, size_bytes, kind, reason))
        else:
            self.omitted += 1

    def name(self, path: Path | str) -> str:
        """Return `path` as the report shows it: relative to the store's directory if possible."""
        path = Path(path)
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    @property
    def is_valid(self) -> bool:
        """True if no damage was found."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """Return the object that `raymq store verify --json` prints."""
        return {
            "store": str(self.root),
            "valid": self.is_valid,
            "writerPid": self.writer_pid,
            "counts": self.counts,
            "findings": [finding.as_json() for finding in self.findings],
            "omitted": self.omitted,
            "notes": self.notes,
        }
