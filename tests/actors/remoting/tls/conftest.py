"""Makes `remoting_peers` importable by the tests in this folder, and creates a CA."""

import sys
from pathlib import Path

import pytest

from tests.certificates import Authority

sys.path.insert(0, str(Path(__file__).parent.parent))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Return a new CA."""
    return Authority(tmp_path / "certificates")
