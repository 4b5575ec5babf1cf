"""How a command runs: config, outputs that resume, errors, progress, terminal, the Hub."""
