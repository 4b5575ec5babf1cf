"""Raters: their interface, their entry in a config, templates, the reading of answers."""
