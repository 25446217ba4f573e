"""Output of the demo: a line for each step, updated while it runs on a terminal, and a summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dcp.cli.terminal import console

_NAME, _WIDTH, _BAR = 9, 100, 28
_REFRESH = 8


@dataclass
class Step:
    """A running step.

    describe: returns the present text.
    progress: returns a number from 0 to 1, shown as a bar; None for no bar.
    bad: True for a failure that the step shows.
    """

    name: str
    describe: Callable[[], str]
    progress: Callable[[], float] | None = None
    bad: bool = False
    started_at: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Duration so far."""
        return time.monotonic() - self.started_at


class Screen:
    """Standard output; nothing is printed if `quiet`. `steps` has the duration of each step in seconds."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(quiet=True) if quiet else console()
        self._is_live = self._console.is_terminal and not quiet
        self._spinner = Spinner("dots", style="cyan")
        self.steps: dict[str, float] = {}

    def print(self, text: str = "", style: str = "") -> None:
        """Print a line."""
        self._console.print(Text(text, style=style))

    @contextmanager
    def step(
        self,
        name: str,
        describe: Callable[[], str],
        progress: Callable[[], float] | None = None,
        *,
        bad: bool = False,
    ) -> Iterator[None]:
        """Show a step while the block runs, and then its duration, with what `describe` returns at the end."""
        step = Step(name, describe, progress, bad)
        try:
            if self._is_live:
                with Live(
                    get_renderable=lambda: self._with_progress(step),
                    console=self._console,
                    refresh_per_second=_REFRESH,
                    transient=True,
                    redirect_stderr=False,
                    redirect_stdout=False,
                ):
                    yield
            else:
                yield
        except BaseException:
            self._console.print(self._line(Text("✗", "bold red"), step))
            raise
        self.steps[name] = self.steps.get(name, 0) + step.seconds
        self._console.print(self._line(Text("✗", "bold red") if bad else Text("✓", "green"), step))

    def _with_progress(self, step: Step) -> Table:
        """Return the line of a running step, with its bar."""
        row = self._line(self._spinner, step)
        if step.progress is None:
            return row
        rest = Table.grid(padding=(0, 1))
        rest.add_row("", " " * _NAME, ProgressBar(1.0, min(1.0, step.progress()), width=_BAR))
        both = Table.grid()
        both.add_row(row)
        both.add_row(rest)
        return both

    def _line(self, mark: Text | Spinner, step: Step) -> Table:
        """Return the line of a step."""
        width = min(_WIDTH, self._console.width)
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(width=_NAME)
        grid.add_column(width=width - _NAME - 12)
        grid.add_column(width=7, justify="right")
        style = "bold red" if step.bad else "bold"
        grid.add_row(mark, Text(step.name, style), Text(step.describe()), Text(f"{step.seconds:.1f} s", "dim"))
        return grid

    def table(self, rows: list[tuple[str, str]]) -> None:
        """Print names and texts in two columns."""
        for name, text in rows:
            self._console.print(Text(f"  {name:<{_NAME}} ", "bold").append(text, ""))

    def shares(self) -> str:
        """Return each step's share of the time, the largest first."""
        total = sum(self.steps.values())
        parts = sorted(self.steps.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts if seconds / total >= 0.005)
