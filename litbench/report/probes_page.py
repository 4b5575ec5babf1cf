"""probes.html: how raters judge changed stories (see document.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from litbench.metrics.probes import ProbeResult, by_rater, fooled_text
from litbench.probes import PROBES, Effect
from litbench.report import figures
from litbench.report.document import Figure, render, short_name
from litbench.text import digest

_EFFECTS: tuple[Effect, ...] = ("breaking", "preserving")
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
    """One example of every probe at its middle strength, drawn by a hash.

    Args:
        pairs: from `litbench.probes.probe_pairs`.
    """
    names = ("probe", "strength", "chosen", "rejected", "pair_id")
    rows = list(zip(*(pairs[name].to_pylist() for name in names), strict=True))
    found = []
    for probe in dict.fromkeys(row[0] for row in rows):
        strengths = sorted({row[1] for row in rows if row[0] == probe})
        middle = strengths[len(strengths) // 2]
        _, _, original, changed, _ = min(
            (row for row in rows if row[:2] == (probe, middle)),
            key=lambda row: digest("example", row[4]),
        )
        pairs_of_letters = enumerate(zip(original, changed, strict=False))
        shorter = min(len(original), len(changed))
        first = next((place for place, (a, b) in pairs_of_letters if a != b), shorter)
        start = max(0, first - _AROUND)
        found.append(Example(probe, middle, _piece(original, start), _piece(changed, start)))
    return found


def draw_probes(results: Sequence[ProbeResult]) -> dict[Effect, Figure]:
    """The plots, by effect; none for an effect without probes.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    raters, panels = by_rater(results), {}
    for effect in _EFFECTS:
        names = dict.fromkeys(one.probe for one in results if one.effect == effect)
        if not names:
            continue
        rows = [
            (
                name.replace("_", " "),
                [
                    [one.prefers_changed for one in of if one.probe == name]
                    for of in raters.values()
                ],
            )
            for name in names
        ]
        right = 0.0 if effect == "breaking" else 0.5
        caption = (
            "Share of pairs in which the changed story is preferred; a tie is one half. Large "
            "mark: the greatest strength, with its 95 % interval by prompt; small: lower ones."
        )
        drawn = figures.probe_rates(rows, [short_name(name) for name in raters], right)
        panels[effect] = Figure(f"Label-{effect} changes", caption, drawn)
    return panels


def render_probes(
    *,
    results: Sequence[ProbeResult],
    panels: Mapping[Effect, Figure],
    pairs: pa.Table,
    trained_on: Mapping[str, int],
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        results: from `litbench.metrics.probes.probe_results`.
        panels: from `draw_probes`.
        pairs: the stories and their changed copies, for the examples.
        trained_on: prompts of these stories that each rater was trained on.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    raters = by_rater(results)
    # A row for every probe and strength, with the results of all raters.
    rows = list(zip(*raters.values(), strict=True))
    return render(
        "probes_page.html",
        title="LitBench: probes",
        # No reader compared these stories; the page itself says so.
        label_sources=[],
        lead=fooled_text(results),
        n_stories=len(set(pairs["chosen_story_id"].to_pylist())),
        raters=list(raters),
        panels=list(panels.values()),
        tables={effect: [row for row in rows if row[0].effect == effect] for effect in panels},
        about={name: probe.about for name, probe in PROBES.items()},
        seen=sorted(name for name, prompts in trained_on.items() if prompts),
        examples=examples_of(pairs),
        manifests=manifests,
    )
