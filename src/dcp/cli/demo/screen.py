"""What the demo says: a line for each step, that moves on a terminal while it is not done, and a summary."""

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
    """A step that is being done. `says` is asked again and again; `done` of 1 is a bar."""

    name: str
    says: Callable[[], str]
    done: Callable[[], float] | None = None
    bad: bool = False
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began


class Screen:
    """Standard output, unless it is for a program. `steps` is how long each took."""

    def __init__(self, *, quiet: bool) -> None:
        self._console = Console(quiet=True) if quiet else console()
        self._is_live = self._console.is_terminal and not quiet
        self._spinner = Spinner("dots", style="cyan")
        self.steps: dict[str, float] = {}

    def say(self, text: str = "", style: str = "") -> None:
        self._console.print(Text(text, style=style))

    @contextmanager
    def step(
        self, name: str, says: Callable[[], str], done: Callable[[], float] | None = None, *, bad: bool = False
    ) -> Iterator[None]:
        """Say what happens as long as it does, and how long it took. `says` has to have the last word, too."""
        step = Step(name, says, done, bad)
        try:
            if self._is_live:
                with Live(
                    get_renderable=lambda: self._moving(step),
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

    def _moving(self, step: Step) -> Table:
        row = self._line(self._spinner, step)
        if step.done is None:
            return row
        rest = Table.grid(padding=(0, 1))
        rest.add_row("", " " * _NAME, ProgressBar(1.0, min(1.0, step.done()), width=_BAR))
        both = Table.grid()
        both.add_row(row)
        both.add_row(rest)
        return both

    def _line(self, mark: Text | Spinner, step: Step) -> Table:
        width = min(_WIDTH, self._console.width)
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(width=_NAME)
        grid.add_column(width=width - _NAME - 12)
        grid.add_column(width=7, justify="right")
        style = "bold red" if step.bad else "bold"
        grid.add_row(mark, Text(step.name, style), Text(step.says()), Text(f"{step.seconds:.1f} s", "dim"))
        return grid

    def table(self, rows: list[tuple[str, str]]) -> None:
        for name, text in rows:
            self._console.print(Text(f"  {name:<{_NAME}} ", "bold").append(text, ""))

    def shares(self) -> str:
        """Where the time went, the longest first."""
        total = sum(self.steps.values())
        parts = sorted(self.steps.items(), key=lambda item: -item[1])
        return ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts if seconds / total >= 0.005)
