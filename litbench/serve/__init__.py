"""Rewards over HTTP, and the page for trying."""
