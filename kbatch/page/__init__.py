"""The page of a search: one HTML file that opens from the disk, without a network."""
