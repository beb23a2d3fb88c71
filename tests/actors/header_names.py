"""Finds the required fields of a header type, for tests that fill them with arbitrary values."""

from __future__ import annotations

from typing import Any

from actors.wire.remoting_errors import Refused


def least_fields(header_type: Any) -> dict[str, str]:
    """Return the required fields of a header type, each with the value "1"."""
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
