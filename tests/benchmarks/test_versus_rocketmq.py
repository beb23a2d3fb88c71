"""Invalid options of the comparison with RocketMQ."""

from __future__ import annotations

import sys

import pytest

from benchmarks.versus_rocketmq import main
from tests.compat.build import RELEASES


def test_unknown_release_is_refused_with_list_of_releases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["versus_rocketmq", "--rocketmq", "5.4.0"])
    with pytest.raises(SystemExit) as refusal:
        main()
    assert refusal.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert all(word in error for word in ("--rocketmq", "5.4.0", *RELEASES)), error


def test_pair_without_java_load_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["versus_rocketmq", "--pair", "sync", "--load", "pull-arrow"])
    with pytest.raises(SystemExit) as refusal:
        main()
    assert refusal.value.code == 2
    assert "--pair needs a Java load" in capsys.readouterr().err
