"""Evaluate filters and pairing rules in simulated worlds, where true quality is known.

    python eval/simulate.py --config configs/eval/simulation_study.yaml --preset small

Simulates worlds (litbench.experiments.simulation.World) with several seeds, pairs their stories by
the rules of every variant and trains a rater on each variant's pairs: once on the number of pairs
of the smallest variant, and once on all. The rater then judges all pairs of stories of held-out
prompts, regardless of votes. The variant `truth` has random pairs labelled by true quality. An
entry of `worlds` changes some keys of the base world.

Writes `study.parquet` (a row per world, seed, variant and amount), `study.csv` (means, 95 %
intervals over seeds and paired differences from the reference), `study.txt`, `study.html` with its
plots as SVG and PNG, and `manifest.json` into `out`. Finished worlds are stored in `out/parts`:
after a kill, or when seeds or worlds are added, only missing worlds are run.
"""

from litbench.config import run_program
from litbench.experiments.simulation import SimulationConfig, run_simulation

Config = SimulationConfig


def main(config: SimulationConfig) -> None:
    """Run the worlds and write the results."""
    run_simulation(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
