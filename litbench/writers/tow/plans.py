"""Plans of Tree-of-Writing: the weights of the leaves of a node, as a planner states them."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from litbench.raters.templates.json_replies import json_objects
from litbench.raters.templates.ratings import canonical

# Weights with two decimals each miss a sum of 1 by rounding.
_ROUNDING = 0.02 + 1e-9
_PUBLISHED_OBJECT = re.compile(r'\{.*?"weights".*?\}', re.DOTALL)
_NUMBER = re.compile(r"-?\d*\.?\d+")
# Place and bounds of the weight that the published code adds to the four planned ones.
_ADDED_AT, _MAX_ADDED = 2, 0.3


@dataclass(frozen=True)
class WeightPlan:
    """Weights of the leaves of a node.

    Attributes:
        weights: by leaf; they sum to 1 (as published not always).
        raw: the weights as they were stated; empty if none could be read.
        flags: what is unusual.
    """

    weights: dict[str, float]
    raw: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


def stated_weights(reply: str, leaves: Sequence[str]) -> list[float] | None:
    """Read the weights of a plan: a JSON list of that length, or a map with all leaves.

    Returns:
        Any numbers, also NaN, in the order of the leaves; None if there are none.
    """
    weights = None
    for content in json_objects(reply):
        stated = content.get("weights", content)
        if isinstance(stated, Mapping):
            by_name = {canonical(str(name)): number for name, number in stated.items()}
            stated = [by_name.get(canonical(leaf)) for leaf in leaves]
        # Not isinstance: true and false are integers.
        is_list = isinstance(stated, list) and {type(item) for item in stated} <= {int, float}
        if is_list and len(stated) == len(leaves):
            # By way of text, which makes a huge integer infinite.
            weights = [float(str(number)) for number in stated]
    return weights


def broken_rule(weights: Sequence[float] | None) -> str | None:
    """The rule that stated weights break, as words to the planner; None if they break none."""
    if weights is None:
        return "没有读到权重：需要一个 JSON 对象，weights 下每个方面一个数"
    if not all(-1 <= weight <= 1 for weight in weights):
        return "每个权重必须是 -1 到 1 之间的数"
    if max(weights) <= 0:
        return "至少有一个权重必须大于 0"
    if abs(sum(weights) - 1) > _ROUNDING:
        return f"权重之和必须为 1，而不是 {sum(weights):g}"
    return None


def final_plan(weights: Sequence[float] | None, leaves: Sequence[str], tries: int) -> WeightPlan:
    """Make a plan of the last weights that were stated.

    Weights that break a rule are divided by their sum if none is negative; otherwise all are equal,
    because dividing by a sum that is not positive would turn the signs round.
    """
    flags = [f"{tries} tries"] if tries > 1 else []
    raw = {} if weights is None else dict(zip(leaves, weights, strict=True))
    total = sum(raw.values())
    if broken_rule(weights) is not None:
        is_usable = 0 < total < math.inf and min(raw.values()) >= 0
        flags.append("plan_renormalised" if is_usable else "plan_fallback")
        if not is_usable:
            return WeightPlan(dict.fromkeys(leaves, 1 / len(leaves)), raw, tuple(flags))
    return WeightPlan({leaf: weight / total for leaf, weight in raw.items()}, raw, tuple(flags))


def published_plan(reply: str, leaves: Sequence[str]) -> WeightPlan:
    """Read a plan as the published code does, for its five leaves.

    Raises:
        ValueError: a weight is not a number; the published code loses the item.
    """
    try:
        stated = _published_weights(reply)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if not all(map(math.isfinite, stated)):
        raise ValueError("a weight is not finite")
    if len(stated) != len(leaves) - 1:
        return WeightPlan(dict.fromkeys(leaves, 1 / len(leaves)))
    added = min(max(sum(stated) / len(stated), 0.0), _MAX_ADDED)
    weights = [*stated[:_ADDED_AT], added, *stated[_ADDED_AT:]]
    total = sum(weights)
    if abs(total) > 1e-9:
        weights = [weight / total for weight in weights]
    planned = [*leaves[:_ADDED_AT], *leaves[_ADDED_AT + 1 :]]
    return WeightPlan(
        dict(zip(leaves, weights, strict=True)), dict(zip(planned, stated, strict=True))
    )


def _published_weights(reply: str) -> list[float]:
    match = _PUBLISHED_OBJECT.search(reply)
    try:
        stated = json.loads(match[0])["weights"] if match else None
    except (ValueError, KeyError):
        stated = None
    if isinstance(stated, list):
        return [float(weight) for weight in stated]
    numbers = [number for number in map(float, _NUMBER.findall(reply)) if -1 <= number <= 1]
    return numbers[:4] if len(numbers) >= 4 else [0.25] * 4


def planned_shares(reply: str) -> dict[str, float]:
    """Each criterion's share l = s / S of a judge that plans its own criteria (section 5.3).

    The reply answers the rubric `auto_plan`: ratings s of named criteria, and S of the whole. The
    last object with both counts; shares are by canonical name.
    """
    weights: dict[str, float] = {}
    for content in json_objects(reply):
        named, total = content.get("criteria"), content.get("overall")
        if isinstance(named, Mapping) and type(total) in (int, float) and 0 < total < math.inf:
            scores = {
                canonical(str(name)): item.get("score") if isinstance(item, Mapping) else item
                for name, item in named.items()
            }
            weights = {
                name: score / total for name, score in scores.items() if type(score) in (int, float)
            }
    return {name: share for name, share in weights.items() if math.isfinite(share)}
