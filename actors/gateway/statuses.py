"""Statuses: the application errors of `apache.rocketmq.v2`, which travel in responses with gRPC status OK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Final

from actors.gateway.proto.definition_pb2 import OK, Code, Status
from actors.gateway.proto.service_pb2 import AckMessageResultEntry, SendResultEntry
from actors.wire.codes import ResponseCode
from actors.wire.remoting_errors import Refused, RemotingError, TimedOut, without_paths

_OF_BROKER: Final[Mapping[int, Code]] = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
    ResponseCode.ILLEGAL_OPERATION: Code.BAD_REQUEST,
    ResponseCode.LMQ_QUOTA_EXCEEDED: Code.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}
_NOT_OF_HANDLES: Final = (
    ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION,
)  # fmt: skip


class RpcFailed(Exception):
    """Ends an rpc with a status of RocketMQ."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def ok() -> Status:
    """Return the status OK."""
    return Status(code=OK, message="OK")


def status_of(error: RpcFailed | Refused | RemotingError) -> Status:
    """Return the status for a failed rpc."""
    if isinstance(error, RpcFailed):
        return Status(code=error.code, message=error.message)
    if isinstance(error, Refused):
        return broker_status(error.code, error.remark)
    code = Code.PROXY_TIMEOUT if isinstance(error, TimedOut) else Code.INTERNAL_SERVER_ERROR
    return Status(code=code, message=without_paths(str(error)))


def status_of_handle(error: RpcFailed | Refused | RemotingError, invalid: Code) -> Status:
    """Return the status for a failed rpc with a handle: `invalid` if a broker does not accept the handle."""
    status = status_of(error)
    if isinstance(error, Refused) and error.code not in _NOT_OF_HANDLES:
        status.code = invalid
    return status


def status_of_all(results: Sequence[SendResultEntry] | Sequence[AckMessageResultEntry]) -> Status:
    """Return the status of a response with several results: RocketMQ's suites compare the message.

    Each result has its reason.
    """
    codes = {each.status.code for each in results}
    code = codes.pop() if len(codes) == 1 else Code.MULTIPLE_RESULTS
    return Status(code=code, message=Code.Name(code))


def check_length(text: str, chars_max: int, code: Code, kind: str) -> None:
    """Raise RpcFailed if a text of a request has more than `chars_max` characters."""
    if len(text) > chars_max:
        raise RpcFailed(
            code, f"the {kind} {text[:40]!r}… has {len(text):,} characters, over the limit of {chars_max:,}"
        )


def check_count(items: Sized, items_max: int, code: Code, kind: str) -> None:
    """Raise RpcFailed if a list of a request has more than `items_max` items; `kind` is their plural."""
    if len(items) > items_max:
        raise RpcFailed(code, f"the request has {len(items):,} {kind}, over the limit of {items_max:,}")


def broker_status(code: int, remark: str | None) -> Status:
    """Return the status for the response of a broker."""
    if code == ResponseCode.SUCCESS:
        return ok()
    known = _OF_BROKER.get(code, Code.INTERNAL_SERVER_ERROR)
    return Status(code=known, message=remark or f"the broker responded with code {code}")
