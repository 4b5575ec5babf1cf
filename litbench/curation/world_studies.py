"""Studies of simulated worlds: which worlds there are, and their rows, kept as they are made.

A study turns the knobs of one base world. A world with one seed is a unit; its rows are kept as a
part named by all that they depend on, so that a killed run goes on with the next one, and a world
or a seed that is added later is all there is to run.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from litbench.artifact import fingerprint, write_json
from litbench.config import build, nearest
from litbench.curation.simulation import World, changed_world
from litbench.errors import ConfigError
from litbench.metrics.pairing_rules import TRUTH, LoneWorld, Place, Prediction, Row


@dataclass(frozen=True)
class Worlds:
    """The worlds of a study, read and checked.

    Attributes:
        places: by their place in the study; without seed.
        about: of each sweep and lone world, in words.
        predictions: by the name of a lone world.
    """

    places: dict[Place, World]
    about: dict[str, str]
    predictions: dict[str, list[Prediction]]

    @classmethod
    def alone(
        cls,
        base: World,
        worlds: Mapping[str, Mapping[str, Any]],
        variants: Sequence[str],
        further: Sequence[str] = (),
    ) -> "Worlds":
        """Worlds that stand alone.

        Args:
            base: what they have in common.
            worlds: name -> keys, see litbench.metrics.pairing_rules.LoneWorld.
            variants: of the study.
            further: what the study measures beside the common measures.

        Raises:
            ConfigError: an unknown key or name, or a value out of its range; the world is named.
        """
        found = cls({}, {}, {})
        for name, keys in worlds.items():
            where = f"worlds: {name}"
            lone = build(LoneWorld, keys, where)
            found.places[Place(name)] = changed_world(base, lone.changes, where)
            found.about[name] = lone.about
            found.predictions[name] = lone.claims(variants, where, further)
        return found


def check_variants(variants: Sequence[str], reference: str, key: str) -> None:
    """Check the names of what a study compares.

    Args:
        variants: their names.
        reference: the one that the others are compared with.
        key: of the config, named in messages.

    Raises:
        ConfigError: a name that is taken, or a reference that is none of them.
    """
    if TRUTH in variants:
        raise ConfigError(f"{key}: '{TRUTH}' is taken by pairs labelled by quality: rename it")
    if reference not in variants:
        raise ConfigError(
            f"reference is '{reference}', which is none of {key}: {nearest(reference, variants)}"
        )


@dataclass(frozen=True)
class Unit:
    """One world with one seed: what is kept as a part.

    Attributes:
        name: fingerprint of all that its rows depend on.
        where: says in messages which it is.
        world: with its seed.
    """

    name: str
    where: str
    world: World

    @property
    def key(self) -> str:
        """Begins its stories' names, which draws depend on: other code, the same draws."""
        return fingerprint(self.world)[:16]


def rows_of_worlds(
    folder: Path,
    worlds: Mapping[Place, World],
    seeds: Sequence[int],
    depends_on: Sequence[Any],
    run: Callable[[Sequence[Unit]], list[list[dict[str, Any]]]],
    *,
    at_once: int = 1,
) -> list[Row]:
    """Run what is not there yet; a world that stands in two places is run once.

    Args:
        folder: of the parts; those that are no part of this study are removed.
        worlds: see `Worlds.places`.
        seeds: of every world.
        depends_on: what rows depend on beside the world, such as rules and code.
        run: gives each unit's rows: what `Row` holds beside place and seed.
        at_once: units given to `run` together, and lost together where it is killed.

    Returns:
        The rows of the whole study, world by world.
    """
    jobs = []
    for place, base in worlds.items():
        for seed in seeds:
            world = replace(base, seed=seed)
            # Not by its place: two sweeps may pass through one world.
            name = fingerprint(world, *depends_on)[:24]
            jobs.append((place, seed, Unit(name, f"world {place}, seed {seed}", world)))
    parts = {unit.name: folder / f"{unit.name}.json" for *_, unit in jobs}
    missing = {unit.name: unit for *_, unit in jobs if not parts[unit.name].exists()}
    with tqdm(total=len(missing), desc="study", unit=" worlds", leave=False, disable=None) as bar:
        for start in range(0, len(missing), at_once):
            units = list(missing.values())[start : start + at_once]
            for unit, found in zip(units, run(units), strict=True):
                write_json(found, parts[unit.name])
            bar.update(len(units))
    for path in set(folder.glob("*.json")) - set(parts.values()):
        path.unlink()
    return [
        Row(place=place, seed=seed, **row)
        for place, seed, unit in jobs
        for row in json.loads(parts[unit.name].read_text(encoding="utf-8"))
    ]
