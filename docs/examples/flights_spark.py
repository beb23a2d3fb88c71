"""Flights with Spark: read, aggregate, stream, write back, index. A script and a notebook (`# %%` cells)."""

# %% [markdown]
# Run `send_flights.py` first. `RAYMQ_NAMESERVERS` names the cluster, by default that of this machine.

# %%
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cluster.client import Admin, MessageQueue, PullConsumer
from jobs import index_keys, local_session, read_queue, read_stream, write_queue

TOPIC, DAYS = "flights", "flights-by-day"
FLIGHT = (
    "carrier STRING, tailnum STRING, origin STRING, dep_delay DOUBLE, arr_delay DOUBLE, time_hour TIMESTAMP"
)
output = Path("flights-output").absolute()
output.mkdir(exist_ok=True)
spark = local_session("flights", settings={"spark.sql.shuffle.partitions": "2"})

# %% [markdown]
# **Batch.** A topic is a DataFrame. `schema` decodes the JSON bodies into typed columns; `columns` lists the
# columns of the message to keep beside them, such as `queueOffset`.

# %%
flights = read_queue(spark, TOPIC, schema=FLIGHT, format="json", columns=[])
by_carrier = flights.groupBy("carrier").agg(
    F.count("*").alias("flights"), F.count("arr_delay").alias("arrived"), F.avg("arr_delay").alias("delay")
)
by_carrier.orderBy("delay").show()

# %%
delays = by_carrier.orderBy("delay").toPandas()
axes = delays.plot.barh(x="carrier", y="delay", figsize=(9, 4), legend=False)
axes.set(title="Mean arrival delay by carrier", xlabel="minutes", ylabel="")
axes.figure.savefig(output / "flights-by-carrier.png", dpi=100, bbox_inches="tight")

# %% [markdown]
# **Stream.** The same topic as a streaming DataFrame: delays by day and airport, with a watermark. With
# `availableNow` the query ends when it has read the messages that were stored at its start; run it again, and
# it continues from its checkpoint. A window is written when the watermark has passed its end, so the last
# days of the topic stay open.

# %%
checkpoint = str(output / "checkpoint")
stream = read_stream(
    spark,
    TOPIC,
    checkpointLocation=checkpoint,
    startingOffsets="earliest",
    maxOffsetsPerTrigger=100_000,
    schema=FLIGHT,
    format="json",
    columns=[],
)
by_day = (
    stream.withWatermark("time_hour", "3 days")
    .groupBy(F.window("time_hour", "1 day"), "origin")
    .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("delay"))
)
writer = by_day.writeStream.format("parquet").option("path", str(output / "days"))
query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
query.awaitTermination()

# %% [markdown]
# **Write back.** The rows become messages of another topic, and are committed together: `committed=True`
# reads each of them once, even if Spark had to repeat a task.

# %%
with Admin() as admin:
    admin.create_topic(DAYS, queues=1)
days = spark.read.parquet(str(output / "days")).withColumn("day", F.col("window.start"))
messages = days.select("origin", F.to_json(F.struct("day", "origin", "flights", "delay")).alias("body"))
receipt = write_queue(messages, DAYS, key="origin", sharding_key="origin")
print(f"wrote {receipt.rows:,} messages to topic {receipt.topic}, committed as job {receipt.job_id}")

# %%
DAY = "day TIMESTAMP, origin STRING, flights BIGINT, delay DOUBLE"
stored = read_queue(spark, DAYS, committed=True, schema=DAY, format="json", columns=[]).toPandas()
by_airport = stored.pivot_table(index="day", columns="origin", values="delay")
axes = by_airport.resample("7D").mean().plot(figsize=(9, 2.8), linewidth=1.2)
axes.set(title="Departure delay by airport, mean of seven days", xlabel="", ylabel="minutes")
axes.grid(alpha=0.3)
axes.figure.savefig(output / "flights-by-day.png", dpi=100, bbox_inches="tight")

# %% [markdown]
# **Re-index.** An index over a field of the bodies, as Parquet files: aircraft → positions in the topic.

# %%
index = index_keys(spark, TOPIC, str(output / "by-aircraft"), json_field="tailnum", mode="overwrite")
print(f"{index.messages_with_key:,} of {index.messages:,} flights have an aircraft")
places = spark.read.parquet(index.path)
places.groupBy("key").count().orderBy(F.desc("count")).show(5)

# %%
place = places.where("key = 'N14228'").orderBy("commitLogOffset").first()
queue = MessageQueue(TOPIC, place["brokerName"], place["queueId"])
with PullConsumer(group="flights") as consumer:
    consumer.assign([queue])
    consumer.seek(queue, place["queueOffset"])
    (found,) = consumer.poll(max_messages=1, timeout_ms=10_000)
print(f"first flight of N14228: {found.body.decode()}")
