"""The audit: what a set of preferences, or a rater on it, really measures."""
