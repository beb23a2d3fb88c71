"""Flights with Ray Data: read, select, write back. A script and a notebook (`# %%` cells)."""

# %% [markdown]
# Run `send_flights.py` first. The read and write tasks run on the Ray cluster of the brokers, and map the
# files of those on their machine.

# %%
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import ray

from cluster.client import Admin
from jobs import read_dataset, write_dataset

TOPIC, LATE = "flights", "flights-late"
FLIGHT = pa.schema([("carrier", pa.string()), ("tailnum", pa.string()), ("arr_delay", pa.float64())])
if not ray.is_initialized():
    ray.init(address="auto", log_to_driver=False)

# %% [markdown]
# **Read.** A topic is a dataset. Ray reads it in several tasks per queue, and in blocks, so that it may be
# larger than the memory.

# %%
flights = read_dataset(TOPIC, columns=["body"])

# %% [markdown]
# **Select.** Flights that arrived more than an hour late. A batch is a table of Arrow, here with JSON bodies.


# %%
def late_flights(batch: pa.Table) -> pa.Table:
    """Return the flights that arrived more than an hour late, with their delay."""
    lines = pa.py_buffer(b"\n".join(batch["body"].to_pylist()))
    options = pyarrow.json.ParseOptions(explicit_schema=FLIGHT, unexpected_field_behavior="ignore")
    table = pyarrow.json.read_json(pa.BufferReader(lines), parse_options=options)
    table = table.append_column("body", batch["body"])
    return table.filter(pc.greater(table["arr_delay"], 60))


late = flights.map_batches(late_flights, batch_format="pyarrow").materialize()
print(f"{late.count():,} of {flights.count():,} flights were more than an hour late")

# %% [markdown]
# **Write back.** All rows are committed together: `read_dataset(LATE, committed=True)` returns each once.

# %%
with Admin() as admin:
    admin.create_topic(LATE, queues=4)
receipt = write_dataset(late, LATE, key="tailnum", tag="carrier", sharding_key="tailnum")
print(f"wrote {receipt.rows:,} messages to topic {receipt.topic}, committed as job {receipt.job_id}")
