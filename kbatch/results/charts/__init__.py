"""Charts of results, defined once: the page shows them, and PNG files are made of them."""
