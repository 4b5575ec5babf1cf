"""Programs; each is a command of `litbench`."""
