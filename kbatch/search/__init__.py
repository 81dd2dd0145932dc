"""The search engine: which recipe to try next, which trial to stop, which recipe to recommend."""
