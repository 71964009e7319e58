"""Plots for the page, as SVG: the same figures give the same file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.figure import Figure

STYLE = {
    "svg.hashsalt": "django-idempotency",
    "svg.fonttype": "none",  # text stays text
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    # Grey that is seen on white and on black alike, and no background of its own.
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color"), "#7a7a7a"),
    "savefig.transparent": True,
    "axes.prop_cycle": matplotlib.cycler(color=["#8a8a8a", "#3b82c4", "#d9822b", "#4f9d69"]),
}


def bars(series: Mapping[str, Sequence[float]], labels: Sequence[str], *, axis: str) -> str:
    """Horizontal bars, a group for each label, from top to bottom."""
    with _axes(0.6 + 0.45 * len(labels)) as (axes, text):
        height = 0.8 / len(series)
        for number, (name, values) in enumerate(series.items()):
            places = [place + (number - (len(series) - 1) / 2) * height for place in range(len(labels))]
            drawn = axes.barh(places, values, height, label=name)
            axes.bar_label(drawn, fmt="%.2f", padding=3, fontsize=8)
        axes.margins(x=0.08)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(axis)
        _legend(axes, series)
    return text.getvalue()


def lines(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    x: str,
    y: str,
    ticks: Sequence[float] | None = None,
) -> str:
    """Lines through points. ticks: the places on a logarithmic x axis; without them it is a linear one."""
    with _axes(3.2) as (axes, text):
        for name, (places, values) in series.items():
            axes.plot(places, values, label=name, marker="o" if ticks else None, linewidth=1.6, markersize=4)
        if ticks:
            # Linear below the first place after 0, so that 0 has a place, too.
            axes.set_xscale("symlog", linthresh=min(tick for tick in ticks if tick))
            axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
            axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        _legend(axes, series)
    return text.getvalue()


@contextmanager
def _axes(height: float) -> Iterator[tuple[Any, StringIO]]:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.5, height), layout="constrained")
        text = StringIO()
        yield figure.subplots(), text
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})


def _legend(axes: Any, series: Mapping[str, Any]) -> None:
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(series))
