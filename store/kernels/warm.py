"""Loading all kernels at once, before messages come (design law 4)."""

from importlib import import_module

from store.kernels.cache import remove_unused

FAMILIES = (
    "batches",
    "columns_to_records",
    "crc32",
    "encode",
    "index",
    "index_check",
    "java_hash",
    "messages_to_batch",
    "properties",
    "records_to_columns",
    "records_to_messages",
    "resync",
    "stamp",
    "unit_check",
    "unit_files",
    "units",
    "walk",
)


def load_kernels() -> None:
    """Compile all kernels (seconds), or load them from the cache (about half a second)."""
    for family in FAMILIES:
        import_module(f"store.kernels.{family}")
    remove_unused()
