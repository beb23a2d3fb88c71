"""MessageKey: the key of messages for an index or a new sharding, a property or a JSON field."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql.functions import col, get_json_object, lit, when

from jobs.job_errors import OptionInvalid


@dataclass(frozen=True)
class MessageKey:
    """The name of a property, or the path of a field in a JSON body; the other one is None.

    Raises OptionInvalid if both are given, or neither.
    """

    property_name: str | None
    json_field: str | None

    def __post_init__(self) -> None:
        if bool(self.property_name) == bool(self.json_field):
            raise OptionInvalid(
                f"property={self.property_name!r} and json_field={self.json_field!r}: give one of them, the"
                " name of a property (KEYS, TAGS, UNIQ_KEY, a user property) or the path of a JSON field"
            )

    def __str__(self) -> str:
        return f"property {self.property_name}" if self.property_name else f"JSON field {self.path}"

    @property
    def path(self) -> str:
        """The JSONPath of the field: `order.id` and `$.order.id` are equal."""
        field = self.json_field or ""
        return field if field.startswith("$") else f"$.{field}"

    @property
    def needed(self) -> str:
        """The column of `read_queue` that contains the key."""
        return "properties" if self.property_name else "body"

    def column(self) -> Column:
        """Return the key as a string column.

        It is null if the property or field is missing or empty, or if the body is not JSON.
        """
        if self.property_name:
            value = col("properties")[lit(self.property_name)]
        else:
            value = get_json_object(col("body").cast("string"), self.path)
        return when(value != "", value)
