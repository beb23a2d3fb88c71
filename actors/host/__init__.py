"""What every actor process shares: the Ray shell, the service host, settings on demand, and supervision."""
