"""Look at a running study of pairs: do its readers agree with the labels more than by chance?

The statistic is that of the analysis, clustered by prompt and reader, against 1/2. Its boundary
spends an error of 5 % over all looks by the share of the planned choices
(`litbench.metrics.sequential`). `looks.json`, beside the plan, has the looks so far.
"""

import json
from dataclasses import dataclass
from functools import partial

import pyarrow.compute as pc

from litbench.metrics.comparisons import interval_p
from litbench.metrics.sequential import MIN_PROMPTS_OF_LOOK, boundaries, z_of_p
from litbench.runs.errors import ConfigError, DataError
from litbench.runs.outputs import write_atomically, write_json
from litbench.study.command import StudyOptions, started_store
from litbench.study.metrics import leave_out, reader_results, study_figures
from litbench.study.pairs import PairStore


@dataclass(kw_only=True)
class Look(StudyOptions):
    """Look whether the readers of a study of pairs have decided; the server goes on.

        litbench study look FOLDER

    Readers count who finished, and whom the plan's rules keep. Say beforehand when you look, such
    as after every fifth reader. Close the study once it is decided.
    """


def look(config: Look) -> None:
    """Print whether the study is decided, and store the look."""
    with started_store(config.folder) as store:
        if not isinstance(store, PairStore):
            raise ConfigError(f"{config.folder} is no study of pairs: look at no other kind")
        study, choices = store.study, store.choices()
    choices = choices.filter(pc.equal(choices["finished"], 1))
    readers = reader_results(choices, study.plan.exclude)
    choices = leave_out(choices, [row["reader"] for row in readers if row["excluded"]])
    figures = study_figures(choices, study.pairs)
    if (least := min(figures.readers, figures.prompts)) < MIN_PROMPTS_OF_LOOK:
        raise DataError(f"{least} readers or prompts: look at {MIN_PROMPTS_OF_LOOK} or more")
    path = study.folder / "looks.json"
    shares = json.loads(path.read_text()) if path.exists() else []
    share = figures.choices / (study.plan.readers_per_pair * study.pairs.num_rows)
    if shares and share <= shares[-1]:
        raise DataError("no reader has finished since the last look: wait for more")
    shares.append(share)
    bound, agreement = boundaries(tuple(shares))[-1], figures.shares["agreement"]
    z = z_of_p(interval_p(agreement, 0.5, is_share=True), agreement.mean - 0.5)
    write_atomically(path, partial(write_json, shares))
    decided = f"decided: readers agree {'more' if z > 0 else 'less'} often than by chance"
    print(
        f"look {len(shares)}: {figures.readers} readers, {share:.0%} of the planned choices, "
        f"agreement {agreement.mean:.3f}, z {z:.2f}, boundary {bound:.2f}: "
        f"{decided if abs(z) >= bound else 'go on'}"
    )
