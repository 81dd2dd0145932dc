"""What was measured, kept: one line of JSON a record, appended and synced."""
