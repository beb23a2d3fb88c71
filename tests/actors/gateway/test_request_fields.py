"""Requests of any rpc are refused by their size and by the number of their fields before they are decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from actors.gateway.grpc import calls
from actors.gateway.grpc.decoder import Decoder, LongWork
from actors.gateway.grpc.fields import FIELDS_MAX, SLICE_FIELDS, count_fields
from actors.gateway.grpc.intake import COPIES
from actors.gateway.grpc.messages import Packed
from actors.gateway.proto import service_pb2 as rpc
from actors.gateway.proto.definition_pb2 import Code, Message
from actors.gateway.service import SERVICE
from tests.actors.gateway.attacks import FIELDS
from tests.actors.gateway.gateways import CLIENT_ID, GrpcClient, message, with_gateway
from tests.actors.gateway.grpc_peers import TAKE, RawPeer, serving
from tests.actors.gateway.test_gateway_access import signed, with_users

RPCS = rpc.DESCRIPTOR.services_by_name["MessagingService"].methods
UNSERVED = {"PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"}
REQUESTS = {each.name: each.input_type for each in RPCS if each.name not in UNSERVED}
MANY = FIELDS_MAX + 1
LOW = 100


def field(number: int, data: bytes) -> bytes:
    """Return the encoding of a field with data."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def floods(descriptor: Descriptor) -> Iterator[tuple[str, bytes]]:
    """Yield a message with too many items for each list, also those of the messages in it; unknown fields."""
    yield "unknown fields", b"\xf8\x3f\x01" * (LOW + 1)
    for each in descriptor.fields:
        name, inner = each.name, each.message_type
        if inner is not None:
            yield f"{name} again", field(each.number, b"") * (LOW + 1)
            yield from ((f"{name}.{of}", field(each.number, data)) for of, data in floods(inner))
        elif each.is_repeated and each.type in (each.TYPE_STRING, each.TYPE_BYTES):
            yield name, field(each.number, b"") * (LOW + 1)
        elif each.is_repeated:
            yield f"{name} packed", field(each.number, b"\1" * (LOW + 1))


def fields_of(data: bytes, kind: type[Any], limit: int = FIELDS_MAX) -> int:
    *_, count = count_fields(data, kind, limit)
    return count


def test_fields_of_every_message_are_counted_at_any_depth() -> None:
    assert len(REQUESTS) == 13
    for name, descriptor in REQUESTS.items():
        for where, data in floods(descriptor):
            assert fields_of(data, GetMessageClass(descriptor), LOW) > LOW, (name, where)


MESSAGES = st.builds(
    rpc.SendMessageRequest,
    messages=st.lists(
        st.builds(
            Message,
            body=st.binary(max_size=20),
            user_properties=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5),
        ),
        max_size=10,
    ),
)


@given(MESSAGES)
def test_encoded_messages_are_counted_as_they_are_decoded(request: rpc.SendMessageRequest) -> None:
    fields = sum(1 + bool(each.body) + 3 * len(each.user_properties) for each in request.messages)
    assert fields_of(request.SerializeToString(), type(request)) == fields


@given(st.binary(max_size=60), MESSAGES, st.integers(0, 500))
def test_messages_that_protobuf_accepts_are_counted(
    noise: bytes, request: rpc.SendMessageRequest, at: int
) -> None:
    data = request.SerializeToString()
    for damaged in (noise, data[:at], data[:at] + noise + data[at:]):
        try:
            count = fields_of(damaged, type(request))
        except ValueError as error:
            if "wire type" not in str(error):  # groups, which no message has
                with pytest.raises(DecodeError):
                    rpc.SendMessageRequest.FromString(damaged)
        else:
            assert count <= len(damaged)


def test_others_run_between_the_slices_of_a_count() -> None:
    turns = 0

    async def run() -> None:
        nonlocal turns
        work = LongWork()
        data = field(1, b"") * FIELDS_MAX
        decoding = asyncio.create_task(Decoder(work).decode(rpc.SendMessageRequest, Packed(data)))
        while not decoding.done():
            turns += 1
            await asyncio.sleep(0)
        request, fields = await decoding
        assert (len(request.messages), fields) == (FIELDS_MAX, FIELDS_MAX)
        work.close()

    asyncio.run(run())
    assert turns >= FIELDS_MAX // SLICE_FIELDS


def test_connections_take_turns_with_costly_requests() -> None:
    async def run() -> None:
        async with serving() as (_, server):
            many, one = RawPeer(server.port), RawPeer(server.port)
            for _ in range(12):  # as many as fit into the window of a connection
                many.request(TAKE, FIELDS, encoding="gzip")
            one.request(TAKE, FIELDS, encoding="gzip")
            many.socket.sendall(many.h2.data_to_send())
            one.socket.sendall(one.h2.data_to_send())
            await one.responses(1)
            assert sum(each.open_requests for each in server.hub.connections) >= 8
            assert server.account.peak_bytes < 3 * COPIES * 5_000_000
            many.socket.close()

    asyncio.run(run())


async def first_of(client: GrpcClient, name: str, data: bytes, metadata: Any, *, is_packed: bool) -> bytes:
    """Return the first response to encoded data of any rpc."""
    compression = grpc.Compression.Gzip if is_packed else None
    call = client.channel.unary_stream(SERVICE + name)(data, metadata=metadata, compression=compression)
    response: bytes = await call.read()
    call.cancel()
    return response


def test_every_rpc_refuses_too_many_fields(tmp_path: Path) -> None:
    async def story(client: GrpcClient) -> None:
        for name, descriptor in REQUESTS.items():
            data = field(descriptor.fields[0].number, b"") * MANY
            for is_packed in (False, True):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await first_of(client, name, data, CLIENT_ID, is_packed=is_packed)
                assert (name, caught.value.code()) == (name, grpc.StatusCode.RESOURCE_EXHAUSTED)
                assert f"{FIELDS_MAX:,} fields" in (caught.value.details() or "")
        assert (await client.send(message())).status.code == Code.OK

    with_gateway(tmp_path, story)


def test_no_rpc_decodes_a_request_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(alice: GrpcClient, root: GrpcClient) -> None:
        decoded = []
        monkeypatch.setattr(calls, "decode", lambda kind, *_: decoded.append(kind))
        monkeypatch.setattr(Decoder, "decode", lambda self, kind, _: decoded.append(kind))
        for name in REQUESTS:
            response = await first_of(
                alice, name, b"\n\0" * 2_500_000, signed("alice", "wrong"), is_packed=True
            )
            code = rpc.QueryRouteResponse.FromString(response).status.code  # `status` is field 1 of most
            if name == "Telemetry":
                code = rpc.TelemetryCommand.FromString(response).status.code
            assert (name, code) == (name, Code.UNAUTHORIZED)
        assert decoded == []

    monkeypatch.setattr("actors.gateway.access.REFUSAL_DELAY_MS", 0)
    with_users(tmp_path, story)
