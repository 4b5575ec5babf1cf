"""`python -m litbench` is the `litbench` command."""

from litbench.cli import main

if __name__ == "__main__":
    main()
