"""What a set of preferences, or a rater on it, really measures."""
