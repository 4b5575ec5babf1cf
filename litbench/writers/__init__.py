"""Protocols: published writing benchmarks, which measure writers by the ratings of judges."""
