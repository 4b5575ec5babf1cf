"""explanations.html: what explanations say and where they agree with people (see document.py)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from litbench.metrics.explanation_text import FEATURES, excerpt
from litbench.metrics.explanations import PUBLISHED_PLOT_GAIN, Explanations, ExplanationStudy
from litbench.report import figures
from litbench.report.document import Figure, render, short_name
from litbench.report.tables import latex_table
from litbench.text import digest

_EXAMPLES = 3
_GROUPS = {"subject": "What it talks of", "manner": "How it talks"}


@dataclass(frozen=True)
class Example:
    """A piece of an explanation, and how its verdict stands to the label."""

    rater: str
    outcome: str
    text: str


def examples_of(feature: str, found: Explanations) -> list[Example]:
    """A few explanations with the feature, of different prompts, drawn by a hash."""

    def drawn(row: int) -> str:
        of = found.rows[row]
        # It knows no outcome: nobody picked them.
        return digest(feature, of["rater"], of["pair_id"], of["order"])

    rows = np.flatnonzero(found.present[:, list(FEATURES).index(feature)]).tolist()
    first_of = {found.clusters[row]: row for row in sorted(rows, key=drawn, reverse=True)}
    picked = [found.rows[row] for row in sorted(first_of.values(), key=drawn)[:_EXAMPLES]]
    return [
        Example(row["rater"], row["outcome"], excerpt(feature, row["explanation"]))
        for row in picked
    ]


def draw_effects(study: ExplanationStudy) -> Figure | None:
    """The plot of all differences over all raters, largest first; None where none can be told.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    by_rater = study.by_rater if len(study.by_rater) > 1 else {}
    rows = [
        (one.feature, one.difference, [of[place].difference for of in by_rater.values()])
        for place, one in enumerate(study.overall)
        if one.difference is not None
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: -row[1].mean)
    drawn = figures.explanation_effects(
        rows, [short_name(name) for name in by_rater], {"plot": PUBLISHED_PLOT_GAIN}
    )
    caption = (
        "Agreement of the verdicts whose explanation has the feature minus that of the others, "
        "with 95 % intervals clustered by prompt; over all raters it is taken within each rater. "
        f"The hollow mark is the +{PUBLISHED_PLOT_GAIN:.1%} that LitBench's authors published "
        "for talk of plot (section 5.2), of other judges on other pairs and without an interval."
    )
    return Figure("Features of explanations and agreement", caption, drawn)


def figure_8_latex(study: ExplanationStudy) -> str:
    """The values that Figure 8 draws: features of explanations over all raters."""
    columns = {
        "feature": ("feature", ""),
        "group": ("group", ""),
        "rate": ("rate [95 %]", ".3f"),
        "difference": ("difference [95 %]", ".3f"),
        "p_holm": ("p (Holm)", ".3f"),
        "published": ("published (LitBench, 5.2)", ".3f"),
    }
    rows = [
        vars(one) | {"published": PUBLISHED_PLOT_GAIN if one.feature == "plot" else None}
        for one in study.overall
    ]
    caption = (
        "Figure 8: agreement of verdicts whose explanation has the feature minus that of the "
        "others, within raters, over all raters. The published difference is of other judges on "
        "other pairs, without an interval."
    )
    return latex_table("figure8", caption, columns, rows)


def _summary(study: ExplanationStudy) -> str:
    told = [one for one in study.overall if one.difference is not None]
    significant = [
        (one.feature.replace("_", " "), one.difference.mean)
        for one in told
        if one.is_clear and one.difference is not None
    ]
    if not significant:
        return f"None of the {len(told)} features that can be told is significant."
    significant.sort(key=lambda item: -abs(item[1]))
    named = ", ".join(f"{feature} ({100 * mean:+.1f} points)" for feature, mean in significant[:4])
    return (
        f"{len(significant)} of {len(told)} features go significantly with agreement, above all "
        f"{named}."
    )


def render_explanations(
    *,
    title: str,
    study: ExplanationStudy,
    panel: Figure | None,
    found: Explanations,
    label_sources: list[str],
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        study: its figures.
        panel: from `draw_effects`.
        found: what the figures were computed of; for the examples.
        label_sources: who preferred the stories, see the schema PAIRS.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    return render(
        "explanations_page.html",
        title=title,
        label_sources=label_sources,
        summary=_summary(study),
        study=study,
        figure=panel,
        groups=[
            (name, [one for one in study.overall if one.group == group])
            for group, name in _GROUPS.items()
        ],
        by_rater=study.by_rater if len(study.by_rater) > 1 else {},
        about={name: words.about for name, words in FEATURES.items()},
        examples={name: examples_of(name, found) for name in FEATURES},
        verdicts=study.overall[0].rate.n,
        prompts=study.overall[0].rate.clusters,
        manifests=manifests,
    )
