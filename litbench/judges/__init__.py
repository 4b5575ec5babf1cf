"""LLM judges: models behind an API or a local server, and the client that queries them."""
