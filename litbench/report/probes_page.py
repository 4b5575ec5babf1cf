"""probes.html: how raters take changed stories (see document.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from litbench.metrics.probes import ProbeStudy, fooled, swayed
from litbench.probes import PROBES, Effect
from litbench.report import figures
from litbench.report.document import Panel, render, short_name
from litbench.text import clean_name, digest

_EFFECTS: tuple[tuple[Effect, str], ...] = (("breaking", "break"), ("preserving", "keep"))
_AROUND, _MOST_SHOWN = 160, 900


@dataclass(frozen=True)
class Example:
    """A piece of a story and of its changed copy, from a little before the first difference."""

    probe: str
    strength: float
    original: str
    changed: str


def _piece(text: str, start: int) -> str:
    end = start + _MOST_SHOWN
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def examples_of(pairs: pa.Table) -> list[Example]:
    """One example of every probe, at its middle strength, by a hash.

    Args:
        pairs: what `litbench.probes.probe_pairs` made.
    """
    names = ("probe", "strength", "chosen", "rejected", "pair_id")
    rows = list(zip(*(pairs[name].to_pylist() for name in names), strict=True))
    found = []
    for probe in PROBES:
        of = [row for row in rows if row[0] == probe]
        if not of:
            continue
        strengths = sorted({row[1] for row in of})
        middle = strengths[len(strengths) // 2]
        _, _, original, changed, _ = min(
            (row for row in of if row[1] == middle), key=lambda row: digest("example", row[4])
        )
        same = zip(original, changed, strict=False)
        first = next(
            (place for place, (one, other) in enumerate(same) if one != other),
            min(len(original), len(changed)),
        )
        start = max(0, first - _AROUND)
        found.append(Example(probe, middle, _piece(original, start), _piece(changed, start)))
    return found


def draw_probes(study: ProbeStudy) -> dict[Effect, Panel]:
    """The plots, by effect; none for an effect without probes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    panels: dict[Effect, Panel] = {}
    for effect, verb in _EFFECTS:
        names = dict.fromkeys(one.probe for one in study.changes if one.effect == effect)
        if not names:
            continue
        rows = [
            (
                name.replace("_", " "),
                [
                    [one.prefers_changed for one in results if one.change.probe == name]
                    for results in study.results.values()
                ],
            )
            for name in names
        ]
        raters = [short_name(rater.rater) for rater in study.raters]
        right = 0.0 if effect == "breaking" else 0.5
        drawn = figures.probe_rates(rows, raters, right)
        caption = (
            "Share of pairs in which the changed story is preferred; a tie is one half. Large "
            "mark: the greatest strength, with its 95 % interval by prompt; small: lesser ones. "
        ) + (
            "0 is right; beyond the dotted line the rater is fooled more often than not."
            if effect == "breaking"
            else "On the dotted line the rater does not care."
        )
        panels[effect] = Panel(f"Changes that {verb} the label", caption, drawn)
    return panels


def _lead(study: ProbeStudy) -> str:
    said = []
    for rater in study.raters:
        probes = fooled(study.results[rater.rater])
        clear = [name for name, results in probes.items() if any(one.is_clear for one in results)]
        if clear:
            listed = ", ".join(name.replace("_", " ") for name in clear)
            said.append(f"{clean_name(rater.rater)} by {listed}")
    if not said:
        return "No rater is clearly fooled more than half of the time by any of these probes."
    return "Clearly fooled more than half of the time: " + "; ".join(said) + "."


def render_probes(
    *,
    title: str,
    study: ProbeStudy,
    panels: Mapping[Effect, Panel],
    pairs: pa.Table,
    trained_on: Mapping[str, int],
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        title: heading of the page.
        study: its figures.
        panels: from `draw_probes`.
        pairs: the stories and their changed copies; for the examples.
        trained_on: prompts of these stories that each rater was trained on.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    places: dict[Effect, Sequence[int]] = {
        effect: [k for k, change in enumerate(study.changes) if change.effect == effect]
        for effect, _ in _EFFECTS
    }
    return render(
        "probes_page.html",
        title=title,
        # Nobody compared a story with its changed copy; the page says so in its own words.
        label_sources=[],
        lead=_lead(study),
        study=study,
        panels=[panel.figure for panel in panels.values()],
        tables=[(effect, verb, places[effect]) for effect, verb in _EFFECTS if places[effect]],
        swayed={rater.rater: swayed(study.results[rater.rater]) for rater in study.raters},
        scored=[rater for rater in study.raters if rater.usual_difference is not None],
        flips={
            rater.rater: [one.flip_rate for one in study.results[rater.rater]]
            for rater in study.raters
        },
        about={name: probe.about for name, probe in PROBES.items()},
        seen=sorted(name for name, prompts in trained_on.items() if prompts),
        examples=examples_of(pairs),
        manifests=manifests,
    )
