"""Raters that are asked: models behind an API or a local server, and the engine that asks them."""
