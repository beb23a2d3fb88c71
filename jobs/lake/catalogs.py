"""Catalogs: opens the catalog that has the tables of topics, and names the tables.

By default the catalog is a SQLite database in the warehouse, `<warehouse>/catalog.db`. Any other catalog of
PyIceberg is chosen by its properties. A secret is never written there: a value is `file:PATH` or `env:NAME`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog, load_catalog

from jobs.job_errors import JobError, LakeUnavailable, OptionInvalid

CATALOG_NAME = "raymq"
CATALOG_FILE = "catalog.db"
LOCK_TIMEOUT_S = 30
DURABLE_FILES = "jobs.lake.durable_files.DurableFiles"
ERRORS_SUFFIX = "_errors"

_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_LOOKS_ESCAPED = re.compile(r"_(?=x[0-9a-f]{2})")
_SECRET = re.compile(
    r"secret|password|token|credential|access-key|account-key|sas|private-key", re.IGNORECASE
)


@dataclass(frozen=True)
class LakeSettings:
    """Where the tables of topics are.

    Attributes:
        warehouse: Directory or URI below which tables have their files.
        namespace: The namespace of the tables in the catalog.
        catalog: PyIceberg's properties of the catalog; empty for the default. `file:PATH` stands for the
            content of a file and `env:NAME` for an environment variable; secrets must be given so.
    """

    warehouse: str
    namespace: str = "raymq"
    catalog: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, value in self.catalog.items():
            is_reference = str(value).startswith(("file:", "env:"))
            is_secret = _SECRET.search(key) is not None or _has_password(str(value))
            # "s3.session-token" is a secret; the URIs, types, scopes and ids around secrets are not
            if is_secret and not is_reference and not key.endswith(("-uri", "-type", "-scope", "-id")):
                raise OptionInvalid(
                    f"catalog: {key} is a secret, which must not be in settings: write it to a file of mode"
                    f" 0600 and give {key}: file:PATH, or give {key}: env:NAME"
                )


def lake_settings(
    warehouse: str, home: Path, catalog: Mapping[str, str] | None = None, namespace: str = "raymq"
) -> LakeSettings:
    """Return the settings for a warehouse; one that is neither absolute nor a URI is below `home`."""
    if not warehouse.strip():
        raise OptionInvalid("warehouse is empty: give a directory or a URI such as s3://bucket/lake")
    is_uri = "://" in warehouse or warehouse.startswith("file:")
    place = warehouse if is_uri else str(home / Path(warehouse).expanduser())
    return LakeSettings(place, namespace, dict(catalog or {}))


def open_catalog(settings: LakeSettings) -> Catalog:
    """Open the catalog, and create its namespace if it is missing.

    Raises `OptionInvalid` if a secret cannot be found, and `LakeUnavailable`.
    """
    properties = _resolved(settings)
    with lake_errors("the catalog"):
        catalog = load_catalog(CATALOG_NAME, **properties)
        catalog.create_namespace_if_not_exists(settings.namespace)
        return catalog


def _resolved(settings: LakeSettings) -> dict[str, str]:
    place = settings.warehouse
    if "://" not in place and not place.startswith("file:"):
        place = f"file://{Path(place).absolute()}"
    files = {"py-io-impl": DURABLE_FILES} if place.startswith("file:") else {}
    if settings.catalog:
        given = {key: _value(key, str(value)) for key, value in settings.catalog.items()}
        return {"warehouse": place, **files, **given}
    local = urlsplit(place)
    if local.scheme != "file":
        raise OptionInvalid(
            f"warehouse={settings.warehouse} is not on this machine, so the default catalog, a file in it,"
            " cannot be used: give the properties of a catalog, such as type: rest, uri: https://…"
        )
    Path(local.path).mkdir(parents=True, exist_ok=True)
    database = f"sqlite:///{local.path}/{CATALOG_FILE}?timeout={LOCK_TIMEOUT_S}"
    return {"type": "sql", "uri": database, "warehouse": place, **files}


def _value(key: str, value: str) -> str:
    scheme, _, name = value.partition(":")
    if scheme == "env":
        if name not in os.environ:
            raise OptionInvalid(f"catalog: {key} is env:{name}, but the environment has no {name}: set it")
        return os.environ[name]
    if scheme == "file" and not name.startswith("//"):
        try:
            return Path(name).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise OptionInvalid(f"catalog: {key} is file:{name}, which cannot be read: {reason}") from error
    return value


def _has_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return False


@contextmanager
def lake_errors(subject: str) -> Iterator[None]:
    """Raise `LakeUnavailable` for the errors of catalogs and file systems, whose types are many.

    Their text may contain the address of a database with its password, so only a part of it is shown.
    """
    try:
        yield
    except (JobError, KeyboardInterrupt, AssertionError):
        raise
    except Exception as error:
        raise LakeUnavailable(
            f"{subject} of the lake cannot be used now: {_reason(error)}; check that the catalog and the"
            " warehouse can be reached, and try again"
        ) from error


def _reason(error: Exception) -> str:
    """Return the reason of an error without the statement, parameters and URLs that it may contain."""
    cause = getattr(error, "orig", None) or error  # the driver's error inside of SQLAlchemy's
    first_line = str(cause).strip().partition("\n")[0]
    shown = re.sub(r"\S+://\S+", "…", first_line)[:300]
    return f"{type(cause).__name__}: {shown}" if shown else type(cause).__name__


def table_name(topic: str) -> str:
    """Return the name of the table of `topic`: characters that catalogs refuse are escaped (% as _x25_)."""
    escaped = _LOOKS_ESCAPED.sub("_x5f_", topic)
    return "".join(each if _PLAIN.match(each) else f"_x{ord(each):02x}_" for each in escaped)
