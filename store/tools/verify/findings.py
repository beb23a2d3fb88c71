"""What a verification finds: an exact list of damage, and notes about what is no damage."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

FINDINGS_MAX = 100_000


class Finding(NamedTuple):
    """Damage: `size_bytes` bytes from byte `place` of a file on; place −1 means the file as a whole."""

    path: str
    place: int
    size_bytes: int
    kind: str
    """file, hole, log, unit, index, checkpoint, notes or config."""
    reason: str

    def as_json(self) -> dict[str, Any]:
        """For people's tools."""
        return {
            "kind": self.kind,
            "path": self.path,
            "place": self.place if self.place >= 0 else None,
            "bytes": self.size_bytes,
            "reason": self.reason,
        }


@dataclass
class Report:
    """The result. Paths are relative to `root` where they lie below it."""

    root: Path
    findings: list[Finding] = field(default_factory=list)
    omitted: int = 0
    """Findings beyond the first 100,000, which are only counted."""
    notes: list[str] = field(default_factory=list)
    """What is no damage: what a crash left for the next start to mend, a broker that runs."""
    counts: dict[str, int] = field(default_factory=dict)
    writer_pid: int | None = None
    """The process that has the store open; None when none has."""

    def add(self, path: Path | str, place: int, size_bytes: int, kind: str, reason: str) -> None:
        """Damage has been found; next to the last of the same kind it becomes one with it."""
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
        """A path as the report shows it."""
        path = Path(path)
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)

    @property
    def is_valid(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings

    def as_json(self) -> dict[str, Any]:
        """The whole as one object."""
        return {
            "store": str(self.root),
            "sound": self.is_valid,
            "writerPid": self.writer_pid,
            "counts": self.counts,
            "findings": [finding.as_json() for finding in self.findings],
            "omitted": self.omitted,
            "notes": self.notes,
        }
