"""The driver of a search from the command line: from a task to a claim."""
