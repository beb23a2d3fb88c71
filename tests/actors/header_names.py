"""Which fields a header must have, found by asking for it: for tests that fill them with anything."""

from __future__ import annotations

from typing import Any

from actors.remoting.remoting_errors import Refused


def least_fields(header_type: Any) -> dict[str, str]:
    """The fields without which the header cannot be read, each a "1"."""
    ext: dict[str, str] = {}
    for _ in range(40):
        try:
            header_type.from_ext(ext)
        except Refused as error:
            missing = error.remark.split("`")[1] if "`" in error.remark else ""
            if not missing or missing in ext:
                break
            ext[missing] = "1"
        else:
            break
    return ext
