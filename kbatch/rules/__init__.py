"""What changes with the batch size; standard library only."""
