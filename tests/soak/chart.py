"""SVG chart of samples: a panel for each resource, and one for the lag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from tests.soak.samples import RESOURCES, UNBOUNDED, Sample

_WIDTH, _LEFT, _RIGHT, _TOP = 960, 78, 24, 70
_PLOT, _GAP = 110, 44
_TICKS = 6
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #3c4043 }
  .title { font-size: 18px; font-weight: 600 }
  .small { font-size: 12px; fill: #70757a }
  .grid { stroke: #e8eaed }
"""
_COLOURS = {
    "rss": "#1a73e8",
    "threads": "#188038",
    "descriptors": "#9334e6",
    "lag": "#e37400",
    "cluster_rss": "#80868b",
}


class _SoakPanel(NamedTuple):
    """A curve over time with a scale from 0. Where a value is unknown, the curve is interrupted."""

    title: str
    colour: str
    points: Sequence[tuple[float, float | None]]
    top: float

    @property
    def most(self) -> float:
        return max((value for _, value in self.points if value is not None), default=0) * 1.05 or 1.0

    def x(self, seconds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / max(self.points[-1][0], 1e-9)

    def y(self, value: float) -> float:
        return self.top + _PLOT * (1 - value / self.most)

    def lines(self) -> Iterator[str]:
        yield f'<text x="{_LEFT}" y="{self.top - 8}">{escape(self.title)}</text>'
        for value in (0.0, self.most / 2, self.most):
            y = self.y(value)
            yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" class="grid"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="small" text-anchor="end">{value:,.0f}</text>'
        for part in self._parts():
            points = " ".join(f"{self.x(seconds):.1f},{self.y(value):.1f}" for seconds, value in part)
            yield f'<polyline points="{points}" fill="none" stroke="{self.colour}" stroke-width="1.5"/>'

    def _parts(self) -> Iterator[list[tuple[float, float]]]:
        part: list[tuple[float, float]] = []
        for seconds, value in [*self.points, (0.0, None)]:
            if value is not None:
                part.append((seconds, value))
            elif part:
                yield part
                part = []


def draw(title: str, samples: Sequence[Sample]) -> str:
    """Return the chart as the text of an SVG file."""
    resources = RESOURCES | UNBOUNDED
    titles = {name: f"{kind.title} {kind.unit and f'({kind.unit})'}" for name, kind in resources.items()}
    panels = [
        _SoakPanel(text, _COLOURS[name], [(each.seconds, getattr(each, name)) for each in samples], top)
        for (name, text), top in zip(titles.items(), range(_TOP, 10_000, _PLOT + _GAP), strict=False)
    ]
    bottom = panels[-1].top + _PLOT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{bottom + 40}">',
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="30" class="title">{escape(title)}</text>',
        *(line for panel in panels for line in panel.lines()),
    ]
    end = samples[-1].seconds
    for number in range(_TICKS + 1):
        seconds = end * number / _TICKS
        x = panels[-1].x(seconds)
        lines.append(f'<text x="{x:.1f}" y="{bottom + 20}" class="small" text-anchor="middle">{seconds:,.0f} s</text>')
    return "\n".join([*lines, "</svg>", ""])
