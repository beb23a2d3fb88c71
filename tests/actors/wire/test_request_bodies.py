"""Bodies of requests that would take long to decode are refused before they are decoded."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import actors
from actors.wire.bodies.access import AclInfo, UserInfo
from actors.wire.bodies.body import Body
from actors.wire.bodies.groups import GroupMembers, HeartbeatData, SyncGroupRequest
from actors.wire.bodies.locks import LockRequest
from actors.wire.json_fields import KEPT_VALUES_MAX, load_kept_object, load_request
from actors.wire.remoting_errors import Refused

REQUESTS: list[type[Body]] = [AclInfo, HeartbeatData, LockRequest, SyncGroupRequest, UserInfo]
OF_REBALANCERS = {GroupMembers}
MEGABYTE = 1 << 20


def decoded_requests() -> set[type[Body]]:
    """Return the classes of which a handler decodes the body of a request."""
    found: set[type[Body]] = set()
    root = Path(actors.__file__).parent
    for path in root.rglob("*.py"):
        names = re.findall(r"(\w+)\.decode\(\s*context\.command\.body", path.read_text())
        module = import_module(".".join(("actors", *path.relative_to(root).with_suffix("").parts)))
        classes = [getattr(module, name) for name in names]
        found |= {each for each in classes if issubclass(each, Body)}
    return found


def test_every_body_of_a_request_has_a_limit_of_values() -> None:
    requests = decoded_requests() - OF_REBALANCERS
    assert len(requests) >= len(REQUESTS)
    assert {each for each in requests if each.values_max is None} == set()


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("value", [b"1", b"{}", b"[]", b'"a"'])
def test_body_with_too_many_values_is_refused(kind: type[Body], value: bytes) -> None:
    assert kind.values_max is not None
    body = b'{"unknown":[' + value + (b"," + value) * (kind.values_max + 20_000) + b"]}"
    with pytest.raises(Refused, match=rf"values, but the limit is {kind.values_max:,}: send several smaller"):
        kind.decode(body)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("value", [b"[" * 20 + b"]" * 20, b'{"a":' * 20 + b"1" + b"}" * 20])
def test_body_with_too_many_objects_is_refused(kind: type[Body], value: bytes) -> None:
    """With few values: each object takes longer to decode than a number."""
    assert kind.values_max is not None
    limit = kind.values_max // 2
    count = min(limit // 20 + 1_000, kind.values_max - 100)
    body = b'{"unknown":[' + value + (b"," + value) * count + b"]}"
    with pytest.raises(
        Refused, match=rf"objects and lists, but the limit is {limit:,}: send several smaller"
    ):
        kind.decode(body)


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * MEGABYTE,
        b'{"a":{' + b"1:1 " * (MEGABYTE // 4) + b"}}",
        b'{"a":"' + b'\\"' * MEGABYTE,
        b"{1:" * MEGABYTE,
    ],
)
def test_long_body_that_is_no_strict_json_is_refused(kind: type[Body], body: bytes) -> None:
    with pytest.raises(Refused, match=r"is not a valid|objects and lists, but the limit is"):
        kind.decode(body)


def test_short_request_may_have_unquoted_keys() -> None:
    assert load_request(b'{"a":{1:2}}', "request", 0) == {"a": {"1": 2}}
    with pytest.raises(Refused, match="is not a valid request"):
        load_request(b'{"a":{1:2},"b":"' + bytes(MEGABYTE).replace(b"\0", b"x") + b'"}', "request", 10)
    with pytest.raises(Refused, match="it is not an object"):
        load_request(b'"' + b"x" * MEGABYTE + b'"', "request", 10)


def test_kept_object_with_too_many_values_is_refused() -> None:
    objects = KEPT_VALUES_MAX // 2
    for limit, value in ((KEPT_VALUES_MAX, b"1,"), (objects, b"{},"), (objects, b'{"a":{"b":{}}},')):
        body = b'{"a":[' + value * (limit + 1) + b"1]}"
        with pytest.raises(Refused, match=f"the limit is {limit:,}"):
            load_kept_object(body, "list", 2 * len(body))
