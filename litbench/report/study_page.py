"""study.html: what pairing rules buy and cost where the truth is known (see document.py)."""

from collections.abc import Mapping
from datetime import UTC, datetime

from litbench.metrics.pairing_rules import AMOUNTS, OUTCOMES, TRUTH, Place, Study
from litbench.report.document import Panel, render
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
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
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
