"""A Spark driver that streams a topic to Parquet files and kills itself once a file exists.

python -m tests.jobs.spark.stream.stream_driver NAMESERVERS TOPIC DIRECTORY FILE
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from jobs import local_session
from tests.jobs.spark.parquet_sink import Sink


def kill_at(path: Path) -> None:
    """Kill this process without any cleanup once `path` exists."""
    poll = threading.Event()
    while not path.exists():
        poll.wait(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def main(nameservers: str, topic: str, directory: str, file: str) -> None:
    """Run the query until the file exists."""
    root = Path(directory)
    spark = local_session(settings={"spark.driver.memory": "512m"})
    threading.Thread(target=kill_at, args=(root / file,), daemon=True).start()
    query = Sink(spark, nameservers, topic, root).start(startingOffsets="earliest", maxOffsetsPerTrigger=20)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
