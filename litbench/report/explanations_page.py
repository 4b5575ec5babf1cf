"""explanations.html: what explanations say and where they agree with people (see document.py)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from litbench.metrics.explanation_text import FEATURE_NAMES, FEATURES, excerpt
from litbench.metrics.explanations import (
    PUBLISHED_PLOT_GAIN,
    Explanations,
    ExplanationStudy,
    FeatureDifference,
)
from litbench.report import figures
from litbench.report.document import Panel, render, short_name
from litbench.report.tables import latex_table
from litbench.text import digest

_EXAMPLES = 3
_GROUPS = {"subject": "What it talks of", "manner": "How it talks", "form": "Its form"}
_ABOUT = {feature.name: feature.about for feature in FEATURES}


@dataclass(frozen=True)
class Example:
    """A piece of an explanation, and how its verdict stands to the label."""

    rater: str
    outcome: str
    text: str


def examples_of(feature: str, found: Explanations) -> list[Example]:
    """A few explanations with the feature, by a hash; of several prompts, and raters, if any.

    Args:
        feature: its name.
        found: the explanations.
    """
    rows = np.flatnonzero(found.present[:, FEATURE_NAMES.index(feature)])
    # By a hash that knows no outcome: nobody picked them.
    ranked = sorted(
        rows.tolist(),
        key=lambda row: digest(feature, found.raters[row], found.pair_ids[row], found.orders[row]),
    )
    picked: list[int] = []
    for names in (found.raters, found.clusters):
        for row in ranked:
            seen = {found.clusters[other] for other in picked}
            if len(picked) < _EXAMPLES and found.clusters[row] not in seen:
                fresh = {names[other] for other in picked}
                picked += [row] if names[row] not in fresh else []
    return [
        Example(found.raters[row], found.outcomes[row], excerpt(feature, found.texts[row]))
        for row in picked
    ]


def _drawn(study: ExplanationStudy) -> dict[str, list[FeatureDifference]]:
    """The lines of the plot beside all raters: families where there are some, or else raters."""
    families = study.at("family")
    if not families:
        raters = study.at("rater")
        return raters if len(raters) > 1 else {}
    alone = study.at("rater")
    names = dict.fromkeys(rater.family for rater in study.raters)
    return {name: families[name] if name in families else alone[name] for name in names}


def draw_effects(study: ExplanationStudy) -> Panel | None:
    """The plot of all differences over all raters, largest first; None where none can be told.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    (overall,) = study.at("all").values()
    groups = _drawn(study)
    rows = [
        (one.feature, one.difference, [of[place].difference for of in groups.values()])
        for place, one in enumerate(overall)
        if one.difference is not None
    ]
    if not rows:
        return None
    rows.sort(key=lambda row: -row[1].mean)
    drawn = figures.explanation_effects(
        rows, [short_name(name) for name in groups], {"plot": PUBLISHED_PLOT_GAIN}
    )
    caption = (
        "Agreement of the verdicts whose explanation has the feature minus that of the others, "
        "with 95 % intervals clustered by prompt; over all raters it is taken within each rater. "
        f"The hollow mark is the +{PUBLISHED_PLOT_GAIN:.1%} that LitBench's authors published "
        "for talk of plot (section 5.2), of other judges on other pairs and without an interval."
    )
    return Panel("Features of explanations and agreement", caption, drawn)


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
    (overall,) = study.at("all").values()
    rows = [
        vars(one) | {"published": PUBLISHED_PLOT_GAIN if one.feature == "plot" else None}
        for one in overall
    ]
    caption = (
        "Figure 8: agreement of verdicts whose explanation has the feature minus that of the "
        "others, within raters, over all raters. The published difference is of other judges on "
        "other pairs, without an interval."
    )
    return latex_table("figure8", caption, columns, rows)


def _summary(study: ExplanationStudy) -> str:
    (overall,) = study.at("all").values()
    told = [one for one in overall if one.difference is not None]
    significant = [
        (one.feature.replace("_", " "), one.difference.mean)
        for one in told
        if one.is_clear and one.difference is not None
    ]
    if not significant:
        return (
            f"None of the {len(told)} features that can be told goes significantly with agreement."
        )
    significant.sort(key=lambda item: -abs(item[1]))
    named = ", ".join(f"{feature} ({100 * mean:+.1f} points)" for feature, mean in significant[:4])
    verb = "goes" if len(significant) == 1 else "go"
    return (
        f"{len(significant)} of {len(told)} features {verb} significantly with agreement, the "
        f"largest: {named}."
    )


def render_explanations(
    *,
    title: str,
    study: ExplanationStudy,
    panel: Panel | None,
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
    (overall,) = study.at("all").values()
    by_rater = study.at("rater")
    return render(
        "explanations_page.html",
        title=title,
        label_sources=label_sources,
        summary=_summary(study),
        study=study,
        figure=None if panel is None else panel.figure,
        groups=[
            (name, [one for one in overall if one.group == group])
            for group, name in _GROUPS.items()
        ],
        places={name: place for place, name in enumerate(FEATURE_NAMES)},
        by_rater=by_rater if len(by_rater) > 1 else {},
        about=_ABOUT,
        examples={name: examples_of(name, found) for name in FEATURE_NAMES},
        verdicts=overall[0].rate.n,
        prompts=overall[0].rate.clusters,
        manifests=manifests,
    )
