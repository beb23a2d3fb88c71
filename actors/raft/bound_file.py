"""`raymq.raft.bound`: how far a majority had the log of this replica before the log was opened.

    {"crc": 1234567890,
     "bound": {"confirmed": 4096}}

The form is that of `raymq.raft` (`checked_file.py`). A smaller number would hide that the replica has lost
confirmed records, so that it could lead without them: a damaged file is refused. Older versions wrote the
digits of the number only; such a file is read, and replaced at the next start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from actors.raft.checked_file import decode_checked, encode_checked
from store.disk.files import replace_file
from store.store_errors import StoreError

BOUND_FILE = "raymq.raft.bound"
_KEY = "bound"
_MAX: Final = 2**63 - 1
_REMEDY = (
    "it says what this replica must not have lost: replace the replica by one with an empty store, "
    "`raymq replica replace`"
)


def read_bound(root: Path) -> int:
    """Return the CommitLog offset that is saved in the store at `root`, or 0 without the file.

    Raises StoreError if the file is damaged.
    """
    content = _read(root)
    return 0 if content is None else _decode(content, root / BOUND_FILE)


def raise_bound(root: Path, confirmed: int) -> int:
    """Return the saved offset or `confirmed`, whichever is greater, after saving it.

    Raises StoreError if the file is damaged, and OSError.
    """
    content = _read(root)
    bound = confirmed if content is None else max(confirmed, _decode(content, root / BOUND_FILE))
    if bound and content != _encode(bound):
        write_bound(root, bound)
    return bound


def write_bound(root: Path, confirmed: int) -> None:
    """Replace the saved offset by `confirmed`, durably. Raises OSError."""
    replace_file(root / BOUND_FILE, _encode(confirmed))


def _read(root: Path) -> bytes | None:
    try:
        return (root / BOUND_FILE).read_bytes()
    except FileNotFoundError:
        return None


def _encode(confirmed: int) -> bytes:
    return encode_checked(_KEY, {"confirmed": confirmed})


def _decode(content: bytes, path: Path) -> int:
    confirmed: Any
    if content.isdigit() and len(content) <= len(str(_MAX)):
        confirmed = int(content)
    else:
        fields = decode_checked(content, _KEY, path, _REMEDY)
        confirmed = fields.get("confirmed") if isinstance(fields, dict) else None
    if type(confirmed) is not int or not 0 <= confirmed <= _MAX:
        raise StoreError(f"has {content[:30]!r} and no position in the log ({_REMEDY})", path)
    return confirmed
