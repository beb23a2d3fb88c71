"""What a person starts and talks to: the driver, the client, the command line.

`launch` is the face of the `driver`; a `topology` says what is wanted, a `session` comes to Ray.
"""
