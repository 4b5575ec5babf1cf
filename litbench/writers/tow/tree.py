"""The tree of Tree-of-Writing: ratings of leaves become a grade (section 3 of the paper).

overall
|- content      weighted by a plan
|- format       mean of its leaves; completions have none
`- impression   a leaf
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

CONTENT = ("opening_ending", "language_rhetoric", "proper_instance", "logic", "emotion")
FORMAT = ("plots_structure", "formatting", "paragraphing")
IMPRESSION = "impression"
NODES = ("content", "format", IMPRESSION)
# Weights of the nodes in the published code.
PUBLISHED_WEIGHTS = dict(zip(NODES, (5.0, 3.0, 1.0), strict=True))
# The published code's value of a missing leaf.
_MISSING = 5.0


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


def leaf_score(leaf: str, rating: float | None, *, as_published: bool = False) -> float | None:
    """Map a judge's rating to the score of a leaf: steps of 0, 5 and 10 for those of format.

    A rating between two steps counts as the lower one. A missing rating stays missing;
    `as_published` it is 5.
    """
    if rating is None:
        return _MISSING if as_published else None
    if leaf == "plots_structure":
        # From these ratings on 5, and 10: the published code and the paper's Table 10.
        return 5.0 * sum(rating >= first for first in (4 if as_published else 5, 8))
    if leaf == "paragraphing":
        return 5 * (min(max(rating, 1.0), 3.0) - 1)
    return rating


def grade_tree(
    leaves: Mapping[str, float | None],
    content: Mapping[str, float],
    weights: Mapping[str, float],
    of_format: Mapping[str, float] | None = None,
) -> Tree:
    """Grade a text from the bottom of the tree to its root.

    A missing leaf leaves its node, and a node without leaves the tree: the others' weights are
    divided by their sum. Node weights that sum to less than 1, such as those of the paper's Table
    7 (0.4, 0.3, 0.2), are not divided: the grade is out of ten times their sum, and a text that
    lacks a node has none.

    Args:
        leaves: scores of the leaves that the text should have; None if missing.
        content: weights of the content leaves.
        weights: of the nodes.
        of_format: weights of the format leaves; None if they weigh the same.
    """
    scores = {name: score for name, score in leaves.items() if score is not None}
    flags: list[str] = []
    nodes = {"content": _mean(scores, content, flags)}
    if nodes["content"] is not None and not 1 <= nodes["content"] <= 10:
        flags.append("content outside of 1 to 10")
    if any(name in leaves for name in FORMAT):
        nodes["format"] = _mean(scores, of_format or dict.fromkeys(FORMAT, 1 / len(FORMAT)), flags)
    nodes[IMPRESSION] = scores.get(IMPRESSION)
    present = {name: score for name, score in nodes.items() if score is not None}
    total = sum(weights[name] for name in present)
    # Weights that should sum to 1 may miss it by rounding.
    if sum(weights.values()) < 1 - 1e-9:
        flags.append(f"out of {10 * sum(weights[name] for name in nodes):g}")
        total = 1.0 if len(present) == len(nodes) else 0.0
    overall = sum(weights[name] * score for name, score in present.items())
    return Tree(nodes, overall / total if total > 0 else None, flags)


def _mean(
    scores: Mapping[str, float], weights: Mapping[str, float], flags: list[str]
) -> float | None:
    """The weighted sum of the known leaves; adds to the flags what is unusual."""
    present = {name: weight for name, weight in weights.items() if name in scores}
    if not present:
        return None
    total = 1.0
    if len(present) < len(weights):
        total = sum(present.values())
        # Never divided by a sum that would turn the signs round.
        if total <= 0:
            flags.append("plan_fallback")
            present, total = dict.fromkeys(present, 1.0), float(len(present))
    return sum(weight / total * scores[name] for name, weight in present.items())
