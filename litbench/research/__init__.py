"""Experiments: one file each, with its config, method, figures and tables."""
