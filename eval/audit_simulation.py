"""Does `litbench audit` find what is planted? Simulated sets of pairs, audited one by one.

    python eval/audit_simulation.py --config configs/eval/sample_audit_simulation.yaml

Every set has invented texts, random labels, and up to two plants: a preference for
longer, later or noted stories, for a position or a model's style, copies in both splits, prompts
under two ids, noise of annotators. Writes `sets.csv` (a row per set and plant),
`audit_simulation.csv` and `.txt` (how often plants of a size that the power calculation calls
detectable were found and named, and how often something else was) and `manifest.json` into `out`.
A killed run resumes; more `sets` add to those that are stored.
"""

from litbench.audit.simulation import AuditSimulation, run_simulation
from litbench.runs.config import run_program

Config = AuditSimulation


def main(config: AuditSimulation) -> None:
    """Simulate and audit the sets, and write the tables."""
    run_simulation(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
