"""LakeProcessSettings: an entry of the key `lakes` of a topology."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from actors.host.metrics.endpoint import MetricsSettings
from jobs.lake.bodies import LakeBodies, bodies_of
from jobs.lake.catalogs import LakeSettings, lake_settings

# It hides a method that pydantic has deprecated.
warnings.filterwarnings("ignore", 'Field name "schema" in "LakeProcessSettings" shadows', UserWarning)
_PATTERN = re.compile(r"[%|a-zA-Z0-9_*-]+")


def _check_pattern(pattern: str) -> str:
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(f"{pattern!r} is no topic: use letters, digits and %|_-, and * for any characters")
    return pattern


class LakeProcessSettings(MetricsSettings):
    """Settings of a process that copies topics into Iceberg tables."""

    topics: list[Annotated[str, AfterValidator(_check_pattern)]] = Field(min_length=1)
    """The topics; `*` stands for any characters. System topics, retries and dead letters are not matched."""
    warehouse: str = "lake"
    """Directory (below RAYMQ_HOME, or absolute) or URI (`s3://…`) below which tables have their files."""
    namespace: str = Field(default="raymq", pattern=r"^[A-Za-z0-9_]+$")
    """Namespace of the tables in the catalog."""
    freshness_s: float = Field(default=30.0, ge=0.1, allow_inf_nan=False)
    """Seconds between the beginnings of two rounds, each of which is a commit if there are new messages."""
    engine: Literal["ray", "spark"] = "ray"
    """What writes the files: Ray tasks on the nodes of the brokers, or Spark (RayDP)."""
    spark_executors: int = Field(default=1, ge=1)
    """With `engine: spark`, the number of executors, of two cores and 1 GB each; they run all the time."""
    catalog: dict[str, str] = Field(default_factory=dict)
    """PyIceberg's properties of the catalog; default: SQLite in `<warehouse>/catalog.db`. Secrets are given
    as `file:PATH` or `env:NAME`.
    """
    schema: str | None = None  # type: ignore[assignment]
    """Columns in place of the bodies of all these topics, as in `read_queue`: `id BIGINT, name STRING`. More
    columns may be added later; bodies that cannot be decoded go to the table `<topic>_errors`.
    """
    format: Literal["json", "msgpack", "avro"] = "json"
    """With `schema`, the format of the bodies."""
    avro_schema: str = ""
    """With `format: avro`, the schema with which the bodies were written, as JSON."""
    upkeep_interval_s: float = Field(default=3600.0, ge=1, allow_inf_nan=False)
    """Seconds between two upkeeps of a table: at least 8 small files of a day become one (at most 4 at a
    time), snapshots expire, and files that no snapshot has are deleted when they are a day old.
    """
    snapshots_kept_h: float = Field(default=6.0, gt=0, allow_inf_nan=False)
    """Age in hours at which a snapshot expires, unless it is one of the newest 10."""
    retention_waits: bool = True
    """Whether brokers keep log files until their messages are in the tables (`retention_waits_for`)."""
    credentials_file: Path | None = None
    """Absolute path of a file of mode 0600 with the keys of the user as which it reads
    (`raymq user credentials`). The user needs the right Sub on the topics and on the groups `raymq-lake-N`
    and `RAYMQ_BULK_READER`.
    """
    nameservers: list[str] = Field(min_length=1)
    """Addresses of the nameservers, `host:port`."""
    cluster_name: str
    """Name of the cluster."""
    group: str
    """Consumer group whose committed offsets are those of the tables."""
    home: Path
    """Directory of the cluster."""
    data_dir: Path
    """Directory in which the process keeps its target state."""

    @field_validator("catalog", mode="before")
    @classmethod
    def _as_texts(cls, given: Any) -> Any:
        """Return texts; an error of pydantic would show the value, which may be a secret."""
        if not isinstance(given, Mapping):
            text = "it must be a mapping, for example {type: rest, uri: https://…}"
            raise ValueError(text)  # noqa: TRY004 - pydantic reports only these
        return {str(key): str(value) for key, value in given.items()}

    @model_validator(mode="after")
    def _check_lake(self) -> Self:
        _ = self.lake, self.bodies
        if self.credentials_file is not None and not self.credentials_file.is_absolute():
            raise ValueError(
                f"credentials_file {self.credentials_file} is a relative path: use an absolute one"
            )
        return self

    @property
    def bodies(self) -> LakeBodies | None:
        """How bodies are decoded; None if the tables have them as they are. Raises OptionInvalid."""
        return bodies_of(self.schema, self.format, self.avro_schema)

    @property
    def lake(self) -> LakeSettings:
        """Where the tables are. Raises OptionInvalid."""
        return lake_settings(self.warehouse, self.home, self.catalog, self.namespace)
