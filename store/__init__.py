"""The store of one broker on disk; `MessageStore` is its interface.

tools                            offline tools: info, dump, query, verify, rebuild
recovery                         opening a store: find the end of the CommitLog, restore queues and index
writing, reading, upkeep         append, read, flush, checkpoints and retention of an open store
dispatch                         reads the CommitLog and writes consume queues and index
commitlog, consumequeue, index   the kinds of files; their directories on disk have the same names
metadata                         the tables in `config/*.json`
ownership                        identity and lock of a store
disk                             file access that all kinds of files share
kernels, message                 compiled loops, and the codecs that clients use too
common                           what all packages share: clock, logs, models of settings, caches

"The log" always means the CommitLog, and "derived files" are the files that can be rebuilt from it: consume
queues and index. A physical offset is a CommitLog offset; a queue offset counts the messages of one queue.
"""
