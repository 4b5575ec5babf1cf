"""Readers of the sources of stories: Reddit, its dumps, published ratings and the sample."""
