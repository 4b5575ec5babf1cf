"""LitBench: verifiers of creative writing from human votes, and how far they agree with people."""

__version__ = "0.1.0"
