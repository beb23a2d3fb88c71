"""The blocking face and that of asyncio say the same: each method, its parameters, defaults and types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from cluster import client
from cluster.client import aio

# What only one of them can have: a future without awaiting; an end of its loop by a fork; what the blocking
# faces take from the others.
ONLY_BLOCKING = {("Producer", "send_async"), ("Producer", "forked")}
ONLY_ASYNC = {("PullConsumer", "acknowledged")}
CLASSES = ["Admin", "Producer", "PullConsumer", "PushConsumer"]


def methods(kind: type) -> dict[str, Callable[..., object]]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }


def told(method: Callable[..., object]) -> list[tuple[str, object, object, object]]:
    parameters = inspect.signature(method).parameters.values()
    return [(each.name, each.kind, each.default, each.annotation) for each in parameters]


def first_line(method: Callable[..., object]) -> str:
    return re.split(r"(?<=[.:])\s", inspect.cleandoc(method.__doc__ or ""))[0]


@pytest.mark.parametrize("name", CLASSES)
def test_both_faces_have_the_same_methods(name: str) -> None:
    blocking, asynchronous = methods(getattr(client, name)), methods(getattr(aio, name))
    only_blocking = {(name, each) for each in blocking.keys() - asynchronous.keys()}
    only_async = {(name, each) for each in asynchronous.keys() - blocking.keys()}
    assert only_blocking <= ONLY_BLOCKING
    assert only_async <= ONLY_ASYNC
    for each in blocking.keys() & asynchronous.keys():
        one, other = blocking[each], asynchronous[each]
        assert told(one) == told(other), each
        assert inspect.signature(one).return_annotation == inspect.signature(other).return_annotation, each
        if each not in ("__init__", "start", "join"):
            assert first_line(one) == first_line(other), each
