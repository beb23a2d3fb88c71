"""RayMQAdapterConfig: where the queue is, and how its tasks are delivered."""

from __future__ import annotations

import os
from typing import Any, Literal

import ray
from pydantic import BaseModel, ConfigDict, Field

from cluster.client import TlsConfig
from cluster.client.config import NAMESERVERS_ENV
from cluster.launch import find_nameservers
from jobs.job_errors import OptionInvalid


class RayMQAdapterConfig(BaseModel):
    """Settings of RayMQTaskProcessor. Without keys or TLS, the environment variables RAYMQ_… are used.

    Attributes:
        nameservers: `host:port;host:port`, or a list. None: RAYMQ_NAMESERVERS, else those in `namespace`.
        namespace: Ray namespace of the topology.
        invisible_ms: A task whose replica has died is delivered again after this time at the latest.
        max_run_ms: A handler that runs longer is given up, and its task is delivered again. None: no limit.
        retry_backoff_ms: Delay of the first retry. It doubles with each retry, up to a minute.
        result_retention_ms: Older results and ids are ignored. Brokers delete the files of the log.
        serializer: Encoding of arguments and results.
        ordered: Tasks with one `group_key` run in order. At most one task of each queue of the topic runs.
        queues: Queues on each broker of topics that are created.
        access_key: User as which requests are signed.
        secret_key: Key of this user.
        tls: Fields of `cluster.client.TlsConfig`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    nameservers: str | list[str] | None = None
    namespace: str = "raymq"
    invisible_ms: int = Field(60_000, ge=1_000)
    max_run_ms: int | None = Field(None, ge=1)
    retry_backoff_ms: int = Field(1_000, ge=0)
    result_retention_ms: int = Field(72 * 3_600_000, ge=1)
    serializer: Literal["json", "msgpack"] = "json"
    ordered: bool = False
    queues: int = Field(8, ge=1)
    access_key: str = ""
    secret_key: str = Field("", repr=False)
    tls: dict[str, Any] | None = None

    def client_settings(self) -> dict[str, Any]:
        """Return the arguments of ClientConfig. Raises OptionInvalid if no nameserver is given or found."""
        nameservers = self.nameservers or os.environ.get(NAMESERVERS_ENV)
        if not nameservers and ray.is_initialized():
            nameservers = find_nameservers(self.namespace)
        if not nameservers:
            raise OptionInvalid(
                f"no cluster of RayMQ is in the Ray namespace {self.namespace!r}: start one with `raymq up`,"
                " or set nameservers or namespace in RayMQAdapterConfig"
            )
        tls = None if self.tls is None else TlsConfig(**self.tls)
        return {
            "nameservers": nameservers,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "tls": tls,
        }
