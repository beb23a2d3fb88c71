"""The requests of producers: checks, interceptors, append, delay, and the response after confirmation."""
