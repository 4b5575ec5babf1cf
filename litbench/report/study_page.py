"""study.html: what pairing rules buy and cost where the truth is known (see document.py)."""

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from litbench.artifact import Artifact, write_json
from litbench.metrics.pairing_rules import (
    AMOUNTS,
    OUTCOMES,
    TRUTH,
    Place,
    Row,
    Study,
    study_json,
    write_study_csv,
)
from litbench.report.document import Panel, render, write_panels
from litbench.text import clean_name


def _lead(study: Study) -> str:
    said = []
    if study.checked:
        count = {
            outcome: sum(one.outcome == outcome for one in study.checked) for outcome in OUTCOMES
        }
        said.append(
            f"Of {len(study.checked)} predictions {count['held']} held, {count['failed']} failed "
            f"and {count['undecided']} are undecided."
        )
    ahead: dict[str, int] = {}
    for place in study.worlds:
        of = [one for one in study.at(place, "equal") if one.variant != TRUTH]
        best = max(of, key=lambda one: one.figures["agreement"].mean)
        ahead[best.variant] = ahead.get(best.variant, 0) + 1
    name, times = max(ahead.items(), key=lambda item: item[1])
    said.append(
        f"At equal numbers of pairs, {clean_name(name)} teaches most about quality in {times} of "
        f"{len(study.worlds)} worlds."
    )
    return " ".join(said)


def _name(place: Place, labels: Mapping[str, str]) -> str:
    if place.value is None:
        return place.group.replace("_", " ")
    return f"{labels[place.group]} {place.at}"


def render_study(
    *,
    title: str,
    study: Study,
    panels: Mapping[str, Panel],
    about: Mapping[str, str],
    labels: Mapping[str, str],
    manifests: Mapping[str, str],
    further: Mapping[str, str] | None = None,
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        study: its figures.
        panels: from `draw_study`.
        about: of each sweep and lone world, in words.
        labels: the axis of each sweep.
        manifests: name and text of what made the page.
        further: measures that this study has beside the common ones, and their headings.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    groups = {
        group: [place for place in study.places if place.group == group]
        for group in dict.fromkeys(place.group for place in study.places)
    }
    return render(
        "study_page.html",
        title=title,
        # Every story is simulated; the page says so in its own words.
        label_sources=[],
        lead=_lead(study),
        study=study,
        truth=TRUTH,
        amounts=AMOUNTS,
        groups=groups,
        names={place: _name(place, labels) for place in study.places},
        about=about,
        panels={name: panel.figure for name, panel in panels.items()},
        further=further or {},
        manifests=manifests,
    )


def write_study(
    artifact: Artifact,
    name: str,
    *,
    study: Study,
    rows: Sequence[Row],
    text: str,
    page: str,
    panels: Mapping[str, Panel],
) -> None:
    """Write what a study gives: `name`.parquet, .json, .csv, .txt, .html and its plots.

    Args:
        artifact: takes the files.
        name: of the files.
        study: its figures.
        rows: what they are made of, one for every world, seed, variant and amount.
        text: for a terminal.
        page: from `render_study`.
        panels: from `draw_study`; their plots are `name`_PANEL.svg and .png.
    """
    table = pa.Table.from_pylist([row.plain() for row in rows])
    artifact.write(f"{name}.parquet", lambda path: pq.write_table(table, path))
    artifact.write(f"{name}.json", lambda path: write_json(study_json(study), path))
    artifact.write(f"{name}.csv", lambda path: write_study_csv(study, path))
    artifact.write(f"{name}.txt", lambda path: path.write_text(text, encoding="utf-8"))
    write_panels(artifact, name, panels)
    artifact.write(f"{name}.html", lambda path: path.write_text(page, encoding="utf-8"))
