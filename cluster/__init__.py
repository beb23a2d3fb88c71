"""The cluster driver, the client and the command line.

`launch` is the public API of the `driver`; a `topology` describes a cluster; a `session` connects to Ray.
"""
