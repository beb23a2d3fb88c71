"""What a person starts and talks to: the driver, the client, the command line."""
