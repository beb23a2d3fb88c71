"""The broker's service: one event loop, one store, the requests that reach both."""
