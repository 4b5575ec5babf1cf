"""The report: HTML and plots from tables."""
