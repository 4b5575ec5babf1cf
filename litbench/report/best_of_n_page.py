"""best_of_n.html: what choosing the story with the highest reward among n brings."""

from collections.abc import Mapping, Sequence
from typing import Any

from litbench.metrics.best_of_n import Choice
from litbench.metrics.intervals import Interval
from litbench.report import figures
from litbench.report.document import Figure, render, short_name
from litbench.text import clean_name


def draw_panels(choices: Sequence[Choice], rater: str, second: str | None) -> dict[str, Figure]:
    """The plots of a curve: `gain`, `length` and, with a second rater, `second_gain`, `second`.

    Args:
        choices: from `litbench.metrics.best_of_n`.
        rater: name of the rater that chooses.
        second: name of the second one.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """

    def plot(name: str, of: str, level: float, y_label: str) -> figures.Drawing:
        told: list[tuple[float, Interval, list[float]]] = [
            (one.n, getattr(one, of), []) for one in choices if getattr(one, of) is not None
        ]
        line = figures.Line(short_name(name), told)
        return figures.scaling(
            [line], [], "n, stories chosen from", "{:,.0f}".format, y_label, level
        )

    band = " Band: its 95 % interval, by prompt."
    panels = {
        "gain": Figure(
            "Gain for the rater that chooses",
            "Reward of the best of n over the mean of the prompt's stories; it can only rise."
            + band,
            plot(rater, "gain", 0.0, "gain in reward"),
        )
    }
    if second is not None and choices[0].second_gain is not None:
        panels["second_gain"] = Figure(
            "Gain for the second rater",
            "The same stories by its rewards. Where it stops rising, n is too large." + band,
            plot(second, "second_gain", 0.0, "gain in its reward"),
        )
    if second is not None and any(one.beats_random is not None for one in choices):
        panels["second"] = Figure(
            "The best of n against a random story",
            "How often the second rater prefers it to another story of the prompt." + band,
            plot(second, "beats_random", 0.5, "share preferred"),
        )
    panels["length"] = Figure(
        "Length",
        "Words of the best of n over the mean of the prompt's stories." + band,
        plot(rater, "words", 1.0, "length, 1 = as the others"),
    )
    return panels


def _lead(choices: Sequence[Choice], rater: str, second: str | None) -> str:
    last = choices[-1]
    text = (
        f"The best of {last.n} by {clean_name(rater)} is {last.gain.mean:.2f} in reward above the "
        f"mean story of its prompt and has {last.words.mean:.2f} times its length"
    )
    if second is not None and last.beats_random is not None:
        text += f"; {clean_name(second)} prefers it to {last.beats_random.mean:.0%} of the others"
    return text + "."


def render_best_of_n(
    *,
    choices: Sequence[Choice],
    rater: str,
    second: str | None,
    counts: Mapping[str, Any],
    panels: Mapping[str, Figure],
    manifests: Mapping[str, str],
) -> str:
    """Render the page.

    Args:
        choices: the curve.
        rater: name of the rater that chooses.
        second: name of the second one.
        counts: of the program.
        panels: from `draw_panels`.
        manifests: name and text of what made the page.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    raters = (("rater", rater), ("second", second))
    seen = [
        (name, counts["trained_on"][key]) for key, name in raters if counts["trained_on"].get(key)
    ]
    return render(
        "best_of_n_page.html",
        title="LitBench: best of n",
        label_sources=[],
        lead=_lead(choices, rater, second),
        choices=choices,
        rater=rater,
        second=second,
        counts=counts,
        seen=seen,
        panels=list(panels.values()),
        manifests=manifests,
    )
