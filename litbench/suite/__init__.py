"""Raters on every published set of human judgements: passports, and their site."""
