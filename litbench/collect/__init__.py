"""Stories from Reddit's API and its archives."""
