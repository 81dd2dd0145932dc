"""The records of a project: one line of JSON a training, appended and synced."""
