"""Scorers of inspect-ai under a name that `inspect score` finds again."""

from collections.abc import Callable, Mapping
from typing import Any

from inspect_ai.scorer import Scorer, scorer
from inspect_ai.util import registry_info


def register_scorer(metrics: Mapping[str, Any]) -> Callable[[Callable[..., Scorer]], Any]:
    """Register a scorer as litbench/NAME, and the one that is logged as litbench/litbench/NAME.

    inspect-ai logs a scorer without its package, and `inspect score` then looks for what is logged.
    It adds the package itself only where it sees how that was installed, which it does not where
    Python finds the folder `litbench.egg-info` of a checkout first.
    """

    def register(make: Callable[..., Scorer]) -> Any:
        name = f"litbench/{make.__name__}"
        seen = registry_info(scorer(metrics=metrics)(make)).name == name
        if not seen:
            scorer(metrics=metrics, name=name)(make)
        return scorer(metrics=metrics, name=name if seen else f"litbench/{name}")(make)

    return register
