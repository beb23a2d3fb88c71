"""Opening a store: where its log ends, what its derived files lack, and the notes that say so quickly."""
