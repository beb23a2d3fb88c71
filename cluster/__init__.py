"""What a person starts and talks to: the driver, the client, the command line.

`launch` is the driver's face: a `topology` says what is wanted, a `session` comes to Ray, `driver` does the rest.
"""
