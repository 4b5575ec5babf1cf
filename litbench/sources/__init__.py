"""Where stories come from."""
