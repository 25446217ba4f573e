"""SVG chart of throughput and lag over time, with marked events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from dcp.cli.demo.monitor import ProgressSample, TimelineEvent

_WIDTH, _HEIGHT = 960, 540
_LEFT, _RIGHT, _TOP, _GAP, _BOTTOM = 78, 24, 100, 46, 46
_PLOT = (_HEIGHT - _TOP - _GAP - _BOTTOM) / 2
_MOST_TICKS = 10
_HEADROOM = 1.05
# A rate is computed between samples this many apart, which smooths it.
_STRIDE = 3
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #3c4043 }
  .title { font-size: 18px; font-weight: 600 }
  .small { font-size: 12px; fill: #70757a }
  .grid { stroke: #e8eaed }
  .mark { stroke: #5f6368; stroke-dasharray: 4 3 }
  .bad { stroke: #c5221f; fill: #c5221f; stroke-width: 1.5 }
  text.bad { stroke: none; font-weight: 600 }
"""

# Seconds. Over less, a rate would be noise.
_SHORTEST = 1e-3


class _Panel(NamedTuple):
    """A curve over time with a logarithmic scale, since the rates of reading and following are far apart."""

    title: str
    colour: str
    points: Sequence[tuple[float, float]]
    top: float
    end: float

    @property
    def decades(self) -> float:
        """Height of the scale in powers of ten."""
        # log10(value + 1), so that 0 is at the bottom of the scale.
        return max(1, math.log10(max(value for _, value in self.points) + 1)) * _HEADROOM

    def x(self, seconds: float) -> float:
        """Return the horizontal position of a time."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / self.end

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return self.top + _PLOT * (1 - math.log10(value + 1) / self.decades)


def draw(title: str, samples: Sequence[ProgressSample], events: Sequence[TimelineEvent]) -> str:
    """Return the chart as the text of an SVG file."""
    # Not 0, by which positions are divided.
    end = max(samples[-1].seconds, 1e-9)
    lags = [(sample.seconds, float(sample.lag)) for sample in samples]
    panels = (
        _Panel("changes received per second", "#1a73e8", _rates(samples), _TOP, end),
        _Panel("lag: changes that are not in the copy yet", "#e37400", lags, _TOP + _PLOT + _GAP, end),
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_LEFT, 30, title, "title"),
    ]
    for panel in panels:
        lines += _axes(panel)
        lines.append(_curve(panel))
    lines += _times(panels[-1])
    lines += _event_marks(panels[0], events)
    return "\n".join([*lines, "</svg>", ""])


def _rates(samples: Sequence[ProgressSample]) -> list[tuple[float, float]]:
    """Return rows per second at the time of each sample."""
    pairs = zip(samples, samples[_STRIDE:], strict=False)
    return [(0.0, 0.0)] + [
        (after.seconds, (after.rows - before.rows) / (after.seconds - before.seconds))
        for before, after in pairs
        if after.seconds - before.seconds > _SHORTEST
    ]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _axes(panel: _Panel) -> Iterator[str]:
    """Return the title and the grid of a panel."""
    yield _text(_LEFT, panel.top - 8, panel.title)
    for decade in range(int(panel.decades) + 1):
        value = 10**decade if decade else 0
        yield _line(_LEFT, panel.y(value), _WIDTH - _RIGHT, panel.y(value), "grid")
        yield _text(_LEFT - 8, panel.y(value) + 4, f"{value:,}", "small", "end")


def _curve(panel: _Panel) -> str:
    """Return the curve of a panel and the area below it."""
    line = " ".join(f"{panel.x(seconds):.1f},{panel.y(value):.1f}" for seconds, value in panel.points)
    first, last = panel.x(panel.points[0][0]), panel.x(panel.points[-1][0])
    area = f"{first:.1f},{panel.y(0):.1f} {line} {last:.1f},{panel.y(0):.1f}"
    return (
        f'<polygon points="{area}" fill="{panel.colour}" fill-opacity="0.12"/>'
        f'<polyline points="{line}" fill="none" stroke="{panel.colour}" stroke-width="2"/>'
    )


def _times(panel: _Panel) -> Iterator[str]:
    """Return the labels of the time axis."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, math.inf) if panel.end / s <= _MOST_TICKS)
    bottom = panel.y(0)
    for number in range(int(panel.end / step) + 1):
        x = panel.x(number * step)
        yield _line(x, bottom, x, bottom + 5, "grid")
        yield _text(x, bottom + 20, f"{number * step:g} s", "small", "middle")


def _event_marks(panel: _Panel, events: Sequence[TimelineEvent]) -> Iterator[str]:
    """Return a line and a text for each event. Texts alternate between two heights, so that they do not overlap."""
    for number, event in enumerate(events):
        x, y = panel.x(event.seconds), 50 + 16 * (number % 2)
        kind = "bad" if event.bad else "mark"
        # Near the right edge, the text is on the left of its line.
        anchor = "end" if x > _WIDTH * 0.75 else "start"
        yield _line(x, y + 4, x, _HEIGHT - _BOTTOM, kind)
        yield _text(x + (-4 if anchor == "end" else 4), y + 6, event.text, "bad" if event.bad else "small", anchor)
