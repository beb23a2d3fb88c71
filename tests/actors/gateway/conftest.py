"""Fixture of the tests of the gRPC layer."""

from __future__ import annotations

import pytest

from actors.gateway.grpc.engine import NewEngine
from actors.gateway.grpc.h2_engine import H2Engine
from actors.gateway.grpc.ngh2_engine import Ngh2Engine


@pytest.fixture(params=[Ngh2Engine, H2Engine])
def engine(request: pytest.FixtureRequest) -> NewEngine:
    made: NewEngine = request.param
    return made
