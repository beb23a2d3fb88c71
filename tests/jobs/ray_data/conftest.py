"""Fixture: a Ray with two CPUs for Ray Data, unless this process is connected to one already."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="session")
def ray_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with one token: Ray reads the token once per process."""
    from cluster.control.session.environment import make_token

    home = tmp_path_factory.mktemp("ray-home")
    make_token(home / "token")
    return home


@pytest.fixture(scope="package")
def ray_data(ray_home: Path) -> Iterator[None]:
    """Connect this process to a Ray, and disconnect it at the end if it was not connected before."""
    from cluster.control.session.ray_session import SessionMode, Way, connect, disconnect, is_connected
    from cluster.control.topology.topology_file import load_topology

    with pytest.MonkeyPatch.context() as patch:
        was_connected = "ray" in sys.modules and is_connected()
        if not was_connected:
            if "RAY_AUTH_TOKEN_PATH" not in os.environ:
                patch.setenv("RAY_AUTH_TOKEN_PATH", str(ray_home / "token"))
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
            patch.setenv("PYTHONPATH", str(REPO))
            patch.delenv("RAY_ADDRESS", raising=False)
            overrides = ["ray.num_cpus=2", f"ray.object_store_memory_bytes={200 << 20}"]
            connect(load_topology(overrides=overrides), ray_home, Way(SessionMode.EMBEDDED, ""))
        import ray.data

        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        yield
        if not was_connected:
            disconnect()
