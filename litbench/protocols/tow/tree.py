"""The tree of Tree-of-Writing: ratings of leaves become a grade (section 3 of the paper).

overall
|- content      weighted by a plan
|- format       mean of its leaves; completions have none
`- impression   a leaf
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["paper", "released"]

CONTENT = ("opening_ending", "language_rhetoric", "proper_instance", "logic", "emotion")
FORMAT = ("plots_structure", "formatting", "paragraphing")
IMPRESSION = "impression"
NODES = ("content", "format", "impression")
# Weights of the nodes, as the released code has them and as the paper's Table 7 implies.
SCHEMES = {"released": (5.0, 3.0, 1.0), "table7": (0.4, 0.3, 0.2)}
# The released code's value of a missing leaf.
_MISSING = 5.0
# Highest ratings of plots_structure that become 0, and that become 5.
_STEPS: dict[Mode, tuple[float, float]] = {"paper": (4, 7), "released": (3, 7)}


@dataclass(frozen=True)
class Tree:
    """The grades of a text.

    Attributes:
        nodes: grade of each node that the text has; None if no leaf of it is known.
        overall: grade of the text; None if nothing is known.
        flags: what is unusual.
    """

    nodes: dict[str, float | None]
    overall: float | None
    flags: list[str] = field(default_factory=list)


def leaf_score(leaf: str, rating: float | None, mode: Mode) -> float | None:
    """Map a judge's rating to the score of a leaf: steps of 0, 5 and 10 for those of format.

    A rating between two steps counts as the lower one. A missing rating stays missing; in the
    released mode it is 5.
    """
    if rating is None:
        return _MISSING if mode == "released" else None
    if leaf == "plots_structure":
        return 5.0 * sum(rating >= highest + 1 for highest in _STEPS[mode])
    if leaf == "paragraphing":
        return 5 * (min(max(rating, 1.0), 3.0) - 1)
    return rating


def grade_tree(
    leaves: Mapping[str, float | None],
    weights: Mapping[str, float],
    scheme: Mapping[str, float],
    *,
    is_normalised: bool = True,
) -> Tree:
    """Grade a text from the bottom of the tree to its root.

    A missing leaf leaves its node, and a node without leaves the tree: the others' weights are
    divided by their sum.

    Args:
        leaves: scores of the leaves that the text should have; None if missing.
        weights: of the content leaves.
        scheme: weights of the nodes.
        is_normalised: whether to divide by the sum of the nodes' weights. If not, a text that lacks
            a node has no grade.
    """
    known = {name: score for name, score in leaves.items() if score is not None}
    flags = []
    content = {name: weight for name, weight in weights.items() if name in known}
    if len(content) < len(weights):
        total = sum(content.values())
        # Never divided by a sum that would turn the signs round.
        if content and total <= 0:
            flags.append("plan_fallback")
            content, total = dict.fromkeys(content, 1.0), float(len(content))
        content = {name: weight / total for name, weight in content.items()}
    nodes: dict[str, float | None] = {"content": None}
    if content:
        mean = sum(weight * known[name] for name, weight in content.items())
        nodes["content"] = mean
        if not 1 <= mean <= 10:
            flags.append("content outside of 1 to 10")
    if any(name in leaves for name in FORMAT):
        of_format = [known[name] for name in FORMAT if name in known]
        nodes["format"] = sum(of_format) / len(of_format) if of_format else None
    nodes[IMPRESSION] = known.get(IMPRESSION)
    present = {name: score for name, score in nodes.items() if score is not None}
    total = sum(scheme[name] for name in present) if is_normalised else 1.0
    overall = None
    if total > 0 and (is_normalised or len(present) == len(nodes)):
        overall = sum(scheme[name] * score for name, score in present.items()) / total
    return Tree(nodes, overall, flags)
