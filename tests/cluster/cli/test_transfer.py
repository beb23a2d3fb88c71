"""`raymq transfer` says why a broker cannot be transferred."""

from __future__ import annotations

import pytest

from .conftest import Raymq


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("a", "--to", "1"), "this broker is in no Raft group"),
        (("a", "--to", "1", "--dry-run"), "this broker is in no Raft group"),
        (("other", "--to", "1"), "no broker other in the cluster"),
        (("a", "--to", "-1"), "a number from 0 to "),
        (("a",), "Missing option '--to'"),
    ],
    ids=["no group", "preview", "unknown broker", "negative", "no replica"],
)
def test_transfer_names_what_is_wrong(raymq: Raymq, arguments: tuple[str, ...], reason: str) -> None:
    code, out, errors = raymq.run("transfer", *arguments, "--yes")
    assert (code != 0, out) == (True, "")
    assert reason in errors
