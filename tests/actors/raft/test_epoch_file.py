"""The list of epochs in RocketMQ's epochFileCheckpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.raft.epoch_file import epoch_file_text, read_epochs
from store.store_errors import StoreError

EPOCHS = [(1, 0), (4, 1648218)]


def test_epochs_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    assert read_epochs(path) == []
    path.write_text(epoch_file_text(EPOCHS))
    assert read_epochs(path) == EPOCHS
    path.write_text("2\n0\n1-0\n4-1648218\n")  # RocketMQ does not check this sum
    assert read_epochs(path) == EPOCHS


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(epoch_file_text(EPOCHS)[:-3], id="torn"),
        pytest.param(epoch_file_text(EPOCHS).replace("4-", "5-"), id="changed"),
        pytest.param("3\n0\n1-0\n4-1648218\n", id="too few lines"),
        pytest.param("1\n0\nx-0\n", id="no number"),
        pytest.param("\xff\xfe", id="binary"),
        pytest.param(epoch_file_text([(2, 0), (1, 9)]), id="epochs fall"),
        pytest.param(epoch_file_text([(1, 9), (2, 9)]), id="empty epoch"),
    ],
)
def test_damaged_list_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "epochs"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(StoreError, match="epochs"):
        read_epochs(path)
