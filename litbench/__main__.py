"""`python -m litbench` is the `litbench` command."""

from litbench.cli import main

main()
