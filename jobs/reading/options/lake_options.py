"""LakeOptions: the table from which a read takes the history of its topics (`jobs.lake`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.job_errors import OptionInvalid
from jobs.option_values import as_choice, as_path

ONLY, WITH_TAIL = "only", "with_tail"
WAREHOUSE = "lake"
"""The warehouse of a topology by default: a directory below RAYMQ_HOME."""
NAMESPACE = "raymq"


@dataclass(frozen=True)
class LakeOptions:
    """The options of a read of tables.

    Attributes:
        has_tail: Continue in the log where the table ends.
        warehouse: Directory or URI of the tables; below RAYMQ_HOME unless it is absolute.
        catalog: Properties of the catalog of PyIceberg; empty for the default.
        where: An expression on the columns of the read, or "" for all rows.
        namespace: The namespace of the tables in the catalog.
    """

    has_tail: bool
    warehouse: str = WAREHOUSE
    catalog: Mapping[str, str] = field(default_factory=dict)
    where: str = ""
    namespace: str = NAMESPACE


def parse_lake(
    lake: object,
    warehouse: object = None,
    catalog: object = None,
    where: object = None,
    namespace: object = None,
) -> LakeOptions | None:
    """Return the options of a read of tables, or None if `lake` is None. Raises `OptionInvalid`."""
    given = {"warehouse": warehouse, "catalog": catalog, "where": where, "namespace": namespace}
    if lake is None:
        if unused := [name for name, value in given.items() if value is not None]:
            raise OptionInvalid(
                f"{', '.join(unused)}: give also lake='only' or lake='with_tail': the log has no table"
            )
        return None
    remedy = "give 'only' to read the table of the topic, or 'with_tail' to continue in the log where it ends"
    choice = as_choice("lake", lake, (ONLY, WITH_TAIL), remedy)
    if catalog is not None and not isinstance(catalog, Mapping):
        raise OptionInvalid(f"catalog={catalog!r} is invalid: give PyIceberg's properties as a dict")
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise OptionInvalid(
            f"where={where!r} is invalid: give an expression such as \"queueId = 3 AND keys = 'order-17'\""
        )
    return LakeOptions(
        choice == WITH_TAIL,
        WAREHOUSE if warehouse is None else as_path("warehouse", warehouse),  # type: ignore[arg-type]
        {str(name): str(value) for name, value in (catalog or {}).items()},
        where or "",
        NAMESPACE if namespace is None else str(namespace),
    )
