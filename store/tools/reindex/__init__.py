"""Re-index a stopped store in parallel: the steps of a re-index, without Spark.

A re-index recreates consume queues and index files from the CommitLog alone:

    each log file   ──scan, dispatch──→  a part: units and keys of the file's records       (`parts`)
    all parts       ──────────────────→  queues: each shard of the queues by itself         (`queues`)
                    ──────────────────→  index files: each index file by itself             (`index_files`)
    new directories ──rename──────────→  the store                                          (`swap`)

The steps of one stage are independent of each other, and may run in several processes on the same files.
They use the dispatch, the sinks and the rules of an open store, so the new files equal those of a broker.
"""
