"""Parts of every actor process: the Ray actor's base class, the service host, settings, supervision."""
