"""Opening a store: find the end of the CommitLog, and dispatch the records that derived files lack."""
