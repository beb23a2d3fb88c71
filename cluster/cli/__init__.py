"""The `raymq` command."""
