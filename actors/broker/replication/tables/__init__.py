"""The tables that are replicated: one `TableSpec` each."""
