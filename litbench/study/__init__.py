"""A study with human readers: plan, assignment, store, page and simulated readers."""
