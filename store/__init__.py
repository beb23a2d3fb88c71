"""The bytes on disk: one broker's store. `MessageStore` is its face.

    tools                            what people ask of a store that no broker holds
    recovery                         opening one
    commitlog, consumequeue, index   its files, in folders of the same names on the disk
    metadata                         its tables, `config/*.json`
    dispatch                         from the log to queues and index
    disk                             what every kind of file needs
    kernels, message                 compiled loops, and the codecs that clients use too

What else runs while messages come and go – append, read, retention – stands beside these.
"""
