"""Turn published preference pairs into a pairs table.

    litbench data import_pairs --config mine.yaml

Reads pairs in one of three forms, from a file or from the Hub:

- a table of stories and a table of pairs of their ids (if `stories` is given);
- the prompt, the chosen and the rejected text in one row, also as messages, as in trl;
- the prompt, a first and a second text, and a label that tells which is better (if `label_first`
  and `label_second` are given). A row may also have an explanation of the label that calls the
  texts A and B (`rationale`); the side that was A is then stored with it.

Columns that the source does not have are null. Texts are unchanged unless `cleaning` is given, and
the rules of make_pairs.py are not applied. Writes into `out`: `pairs.parquet`, `rejected.jsonl`
(rows that could not be used, with reasons), `examples.jsonl` (removed passages, with `cleaning`)
and `manifest.json`.
"""

from litbench.data.sources.pairs import PairImport, import_pairs
from litbench.runs.config import run_program

Config = PairImport


def main(config: PairImport) -> None:
    """Import the pairs and write them."""
    import_pairs(config, __file__)


if __name__ == "__main__":
    run_program(main, Config, __doc__)
