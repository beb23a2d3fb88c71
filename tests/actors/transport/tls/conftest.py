"""A CA for the tests of TLS."""

from pathlib import Path

import pytest

from tests.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return a new CA."""
    return Authority(tmp_path / "certificates")
