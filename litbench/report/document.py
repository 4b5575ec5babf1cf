"""What the pages share: the frame, the pictures, how numbers are written.

A page is a template that extends `frame.html` and takes its macros from `pieces.html`. It holds
no script and asks for nothing from the network; a content security policy in it says so to the
browser. Whatever a template is given is untrusted and escaped, but for the drawn pictures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from litbench.artifact import Artifact
from litbench.errors import MissingExtraError
from litbench.metrics.intervals import Interval
from litbench.metrics.printing import write_dollars
from litbench.report.figures import Drawing
from litbench.text import clean_name

# What the labels of a pairs file say about people, by label_source.
LABELS = {
    "votes": "votes of readers",
    "people": "judgements of people",
    "model": "labels of a model, not of people",
    "planted": "planted labels: simulated, so no claim about people can be made from this page",
}


@dataclass(frozen=True)
class Figure:
    """A picture with what it says; a tall one stands beside two others.

    Attributes:
        title: heading.
        caption: what to look for.
        drawing: from litbench.report.figures.
        tall: whether it spans two rows of the grid.
        alt: read aloud in place of the picture; title and caption when not given.
    """

    title: str
    caption: str
    drawing: Drawing
    tall: bool = False
    alt: str = ""


def write_panels(artifact: Artifact, name: str, panels: Mapping[str, Figure]) -> None:
    """Write the plots of a page as files of their own, `name`_PANEL.svg and `name`_PANEL.png."""
    for key, panel in panels.items():
        for file, write in panel.drawing.files(f"{name}_{key}").items():
            artifact.write(file, write)


def short_name(name: str) -> str:
    """A name that fits beside a picture: `clean_name`, with at most 40 letters."""
    name = clean_name(name)
    return name if len(name) <= 40 else f"{name[:39]}…"


def write_seconds(value: float) -> str:
    """A number of seconds to three digits, or to the second; a dash where nobody measured."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def most_per_unit(funnel: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """What the first step of each unit kept: the full width of its bars, at least 1."""
    return {step["unit"]: max(step["kept"], 1) for step in reversed(funnel)}


def _place(value: float) -> float:
    """Where a share stands on the drawn scale, in per cent."""
    return 100 * min(max(value, 0.0), 1.0)


def _share(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"


def _interval(value: Interval | None) -> str:
    if value is None or not math.isfinite(value.mean):
        return "–"
    if not math.isfinite(value.low):
        return f"{value.mean:.3f} (one prompt: no interval)"
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _p_value(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _number(value: Any) -> str:
    """A count with its thousands apart, another number to three digits, anything else as it is."""
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def render(template: str, **values: Any) -> str:
    """Fill a template of this folder.

    Args:
        template: its file name.
        values: what it shows; `title`, `label_sources` and `manifests` (name -> text) for the
            frame.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: PLC0415
        import markupsafe  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("jinja2", "report") from error

    def picture(figure: Figure) -> markupsafe.Markup:
        alt = markupsafe.escape(figure.alt or f"{figure.title}. {figure.caption}")
        named = figure.drawing.svg.replace('role="img"', f'role="img" aria-label="{alt}"', 1)
        return markupsafe.Markup(named)  # noqa: S704

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.PackageLoader("litbench.report", ""),
    )
    environment.filters.update(
        dollars=write_dollars, interval=_interval, name=clean_name, number=_number,
        p_value=_p_value, percent=_percent, picture=picture, place=_place, seconds=write_seconds,
        share=_share,
    )  # fmt: skip
    style = resources.files("litbench.report").joinpath("style.css").read_text(encoding="utf-8")
    sources = values["label_sources"]
    values |= {
        "written": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        "style": markupsafe.Markup(style),  # noqa: S704
        "labels": [LABELS[source] for source in sources],
        "planted": "planted" in sources,
    }
    page = environment.get_template(template).render(values)
    # JSON can name half a character, which UTF-8 cannot write.
    return page.encode("utf-8", "replace").decode("utf-8")
