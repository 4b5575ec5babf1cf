"""The renderer of all pages: the frame, pictures, and how numbers are written.

A page is a template that extends `frame.html` and imports macros from `pieces.html`. It has no
scripts and requests nothing from the network, as its content security policy states. All values of
a template are untrusted and escaped, except pictures.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from numbers import Integral
from pathlib import Path
from typing import Any
from urllib.parse import quote

from litbench.errors import MissingExtraError
from litbench.metrics.intervals import Interval
from litbench.metrics.printing import write_dollars
from litbench.report.figures import Drawing
from litbench.store import Artifact
from litbench.text import clean_name

# Descriptions of the labels of a pairs file, by label_source.
LABELS = {
    "votes": "readers' votes",
    "people": "annotators' judgements",
    "model": "labels by a model, not by annotators",
    "planted": "planted labels: simulated, so this page says nothing about real readers",
}
# The pages of all programs by file name, in the order of the links to them.
PAGES = {
    "data_report.html": "Data report",
    "report.html": "Report",
    "explanations.html": "Explanations",
    "preferences.html": "Preferences",
    "probes.html": "Probes",
    "ablation.html": "Ablation",
    "best_of_n.html": "Best of n",
    "study.html": "Simulation study",
    "writers.html": "Writers",
    "human_study.html": "Human study",
}


@dataclass(frozen=True)
class Figure:
    """A picture with title and caption; if tall, it spans two rows of the grid."""

    title: str
    caption: str
    drawing: Drawing
    tall: bool = False


def page_links(page: Path, beside: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Names and relative addresses of other pages, in sibling folders of a page's folder.

    `beside` names pages that the same run writes into the page's folder.
    """
    out = page.resolve().parent
    links = []
    for file, name in PAGES.items():
        if file == page.name:
            continue
        links += [(name, file)] if file in beside else []
        for path in sorted(out.parent.glob(f"*/{file}")):
            if path.parent != out or file not in beside:
                address = quote(os.path.relpath(path, out).replace(os.sep, "/"))
                links.append((f"{name} ({path.parent.name})", address))
    return links


def short_name(name: str) -> str:
    """`clean_name`, cut to 40 characters to fit beside a picture."""
    name = clean_name(name)
    return name if len(name) <= 40 else f"{name[:39]}…"


def shorten(text: str, most: int) -> str:
    """A text cut to `most` characters, with a note of how many were cut."""
    return text if len(text) <= most else f"{text[:most]} […{len(text) - most:,} more letters]"


def most_per_unit(funnel: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The count after the first step of each unit, at least 1: the full width of its bars."""
    return {step["unit"]: max(step["kept"], 1) for step in reversed(funnel)}


def _formatted(form: str, scale: float = 1) -> Any:
    """A filter that formats a number; a dash if it is missing or not finite."""

    def write(value: float | None) -> str:
        return "–" if value is None or not math.isfinite(value) else form.format(scale * value)

    return write


def _interval(value: Interval | None) -> str:
    if value is None or not math.isfinite(value.mean):
        return "–"
    if not math.isfinite(value.low):
        return f"{value.mean:.3f} (one prompt: no interval)"
    return str(value)


def signed(value: Interval | float | None) -> str:
    """A difference with its sign, and its interval if it has one."""
    if isinstance(value, Interval):
        bounds = f" [{value.low:+.3f}, {value.high:+.3f}]" if math.isfinite(value.low) else ""
        return signed(value.mean) + bounds
    # Adding 0.0 removes the sign of a negative zero.
    return "–" if value is None or not math.isfinite(value) else f"{round(value, 3) + 0.0:+.3f}"


def _p_value(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _seconds(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _number(value: Any) -> str:
    """Format integers with thousands separators and floats to three digits; str() of the rest."""
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, Integral) else str(value)


def render(template: str, **values: Any) -> str:
    """Render a template of this folder.

    Args:
        template: file name of the template.
        values: variables of the template. The frame requires `title`, `label_sources` and
            `manifests` (name -> text); `links` come from `page_links`.
    """
    try:
        import jinja2  # noqa: PLC0415
        import markupsafe  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("jinja2", "report") from error

    def picture(figure: Figure) -> markupsafe.Markup:
        alt = markupsafe.escape(f"{figure.title}. {figure.caption}")
        named = figure.drawing.svg.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1)
        return markupsafe.Markup(named)  # noqa: S704

    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.PackageLoader("litbench.report", ""),
    )
    environment.filters.update(
        dollars=write_dollars, interval=_interval, name=clean_name, number=_number,
        p_value=_p_value, percent=_formatted("{:.1f} %", 100), picture=picture,
        place=lambda value: 100 * min(max(value, 0.0), 1.0), seconds=_seconds,
        share=_formatted("{:.3f}"), signed=signed, shorten=shorten,
        words=lambda name: name.replace("_", " "),
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
    # JSON may contain lone surrogates, which UTF-8 cannot encode.
    return page.encode("utf-8", "replace").decode("utf-8")


def write_page(
    artifact: Artifact, name: str, panels: Mapping[str, Figure | None], **values: Any
) -> None:
    """Render NAME_page.html, and write NAME.html and the files of all panels."""
    drawn = {key: panel for key, panel in panels.items() if panel is not None}
    for key, panel in drawn.items():
        for file, write in panel.drawing.files(key).items():
            artifact.write(file, write)
    page = render(
        f"{name}_page.html", panels=list(drawn.values()), manifests={name: artifact.made_of()},
        links=page_links(artifact.folder / f"{name}.html"), **values,
    )  # fmt: skip
    artifact.write(f"{name}.html", lambda path: path.write_text(page, encoding="utf-8"))
