"""The admin client, with a blocking and an async API."""
