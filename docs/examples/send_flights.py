"""Send the flights that left New York City in 2013 to the topic `flights`, in order of their departure.

    uv run python docs/examples/send_flights.py [COUNT]

Each message has the flight as JSON, its carrier as tag and its aircraft as key.
"""

from __future__ import annotations

import sys

from cluster.client import Admin, Producer
from cluster.lab.demo.flights import ALL_FLIGHTS, as_messages, read_flights

TOPIC = "flights"


def main(count: int = ALL_FLIGHTS) -> None:
    """Send the first `count` flights, unless the topic has messages already."""
    flights = as_messages(read_flights(count).sort_values("time_hour", kind="stable"))
    with Admin() as admin, Producer() as producer:
        admin.create_topic(TOPIC, queues=4)
        if stored := sum(admin.end_offsets(TOPIC).values()):
            print(f"topic {TOPIC} has {stored:,} messages already")
            return
        producer.send_table(TOPIC, flights, tags="tags", keys="keys", sharding_key="keys")
    print(f"sent {flights.num_rows:,} flights to topic {TOPIC}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
