"""Opening a store: find the end of its log, and dispatch the records that derived files lack."""
