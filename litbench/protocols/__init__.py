"""Benchmarks of writers: what is asked, how texts are rated, how ratings become grades."""
