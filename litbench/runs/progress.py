"""Progress of long work: a bar in a terminal, a line now and then in a log file."""

import sys
import time
from typing import Any

from tqdm import tqdm

# Without a terminal: seconds between lines, and before the first.
_SECONDS = 30.0


class _Lines:
    """A stream for tqdm that writes each state of the bar as a line of its own."""

    def write(self, text: str) -> None:
        if line := text.strip("\r\n "):
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()


class ProgressBar(tqdm):  # type: ignore[type-arg]
    """tqdm's bar; without a terminal, a line with the time left every 30 seconds.

    Work that takes less than 30 seconds writes nothing there.
    """

    _next = 0.0
    _has_lines = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        if options.get("disable") is None and not sys.stderr.isatty():
            self._next = time.monotonic() + _SECONDS
            form = options.get("bar_format", "{l_bar}{bar}{r_bar}").replace("|{bar}|", " ")
            options |= {
                "disable": False,
                "file": _Lines(),
                "leave": False,
                "delay": _SECONDS,
                "bar_format": form.replace("{l_bar}{bar}", "{desc}: {percentage:3.0f}% "),
            }
        super().__init__(*arguments, **options)

    def moveto(self, n: int) -> None:
        """Move the cursor between bars, in a terminal only."""
        if not self._next:
            super().moveto(n)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Show the state, in lines at most every 30 seconds."""
        if self._next:
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + _SECONDS
            self._has_lines = True
        super().display(msg, pos)

    def close(self) -> None:
        """Close the bar; where lines were written, the last one shows its end."""
        if self._has_lines and not self.disable:
            super().display()
        super().close()
