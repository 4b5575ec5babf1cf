"""The audit: what a set of preferences, and a rater on it, really measures; see `Audit`.

The method is in `litbench.audit.findings` (the set) and `audit_rater` (the rater).
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.audit.findings import (
    ALPHA,
    AuditResult,
    Finding,
    SetAudit,
    audit_pairs,
)
from litbench.audit.probes import language_of
from litbench.audit.probing import ProbesConfig
from litbench.audit.rater import (
    RaterAudit,
    audit_rater,
    rater_findings,
    rater_section,
)
from litbench.data.columns import PairColumns
from litbench.data.records import RATINGS, SIDES, VERDICTS, connected_prompts, empty_columns
from litbench.data.sources.pairs import read_any_pairs
from litbench.data.sources.ratings import overall_ratings
from litbench.data.tables import read_table
from litbench.evaluation.benchmark import Benchmark, rater_entry
from litbench.evaluation.loop import compare_annotators
from litbench.evaluation.report import figures
from litbench.evaluation.report.data_sections import PairsFolder, made_by
from litbench.evaluation.report.document import (
    ENDS,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    p_value,
    page_links,
    percent,
    render,
    stacked,
)
from litbench.judges.client import JudgeKeys
from litbench.metrics.agreement import length_differences
from litbench.metrics.intervals import jackknife_interval
from litbench.metrics.leaderboard import plain
from litbench.raters.entries import RaterSpec, files_of
from litbench.runs.config import Positional, Runtime
from litbench.runs.errors import ConfigError, MissingExtraError
from litbench.runs.outputs import Artifact, write_json

_PROGRAM = "litbench audit"
_ON_TOP, _PERIODS, _MIN_PER_PERIOD = 5, 4, 20


@dataclass(kw_only=True)
class Audit(PairColumns, JudgeKeys):
    """Find out what a set of preferences, and a rater on it, really measures.

        litbench audit pairs.parquet --out runs/audit
        litbench audit OWNER/PREFERENCES --model openai/gpt-4.1-mini --dry_run

    Shows which cues decide pairs without reading (length, time, a writer's name, ...), the power
    of a set of this size, leaks between splits, and with a rater whether it reads the stories.
    Writes audit.html and audit.json; see docs/audit.md.

    Attributes:
        pairs: folder with pairs.parquet, or pairs as Parquet, JSONL, CSV or a name on the Hub. It
            can be the first argument, without --pairs.
        out: output folder.
        split: only pairs of this split.
        title: heading of the page.
        examples: show texts of stories that the steps removed.
        model: also audit this rater: a model folder, a reward model on the Hub, or inspect-ai's
            name of a model that judges.
        rater: the same by a config entry, such as '{kind: reward, path: OWNER/MODEL}'.
        max_pairs: maximum number of pairs that the rater judges, drawn over prompts.
        probe_prompts: number of prompts whose stories are changed to fool the rater; 0: no probes.
        seed: seed of folds and probes.
        dry_run: only estimate calls, tokens, dollars and minutes of the rater.
    """

    pairs: Annotated[str, Positional]
    out: Path = Path("runs/audit")
    split: str | None = None
    title: str = "LitBench audit"
    examples: bool = True
    model: str | None = None
    rater: Any = None
    max_pairs: int | None = None
    probe_prompts: int = 20
    seed: int = 0
    dry_run: Annotated[bool, Runtime] = False

    def spec(self) -> RaterSpec | None:
        """The checked rater, if one is given."""
        if self.model is not None and self.rater is not None:
            raise ConfigError("model and rater are both given: leave one of them out")
        if self.rater is not None:
            if not isinstance(self.rater, dict) or "kind" not in self.rater:
                raise ConfigError(f"rater is {self.rater!r:.80}: write '{{kind: ...}}'")
            entry = dict(self.rater)
            name = entry.get("model", entry.get("judge", entry["kind"]))
            return RaterSpec(str(name), entry.pop("kind"), entry, False)
        if self.model is None:
            return None
        entry = rater_entry(self.model, self.judge_entry())
        name = Path(self.model).name if "path" in entry else self.model
        return RaterSpec(name, entry.pop("kind"), entry, False)


def audit(config: Audit) -> None:
    """Audit the set and the rater, and write the page."""
    spec = config.spec()
    folder = PairsFolder.find(config.pairs, examples=config.examples)
    artifact = Artifact(
        config.out,
        program=_PROGRAM,
        config=config,
        inputs=folder.files,
        models=files_of([spec] if spec else []),
    )
    page = (config.out / "audit.html").resolve()
    # Without the extra `report` there is no page yet.
    if config.dry_run or not (page.is_file() and artifact.is_current()):
        rater = None
        if spec is not None:
            benchmark, probes = _of_rater(config, spec, Path(folder.files["pairs"]))
            rater = audit_rater(spec.name, benchmark, probes, config.seed)
        if config.dry_run:
            return
        files = audit_files(
            folder,
            config.title,
            page,
            rater,
            split=config.split,
            columns=config.columns(),
            seed=config.seed,
        )
        for name, write in files.items():
            artifact.write(name, write)
        artifact.finish()
    print((config.out / "audit.txt").read_text(encoding="utf-8"), end="")
    if page.is_file():
        print(f"page: {page}")


def _of_rater(config: Audit, spec: RaterSpec, pairs: Path) -> tuple[Benchmark, ProbesConfig | None]:
    """The rater's work: the pairs, and changed stories."""
    raters = {spec.name: spec.plain()}
    shared: dict[str, Any] = {
        "split": config.split,
        "on_training_prompts": "flag",
        "dry_run": config.dry_run,
        **config.columns(),
    }
    benchmark = Benchmark(
        pairs=pairs,
        out=config.out / "rater",
        raters={"longer": {"kind": "longer"}, **raters},
        max_pairs=config.max_pairs,
        **shared,
    )
    probes = ProbesConfig(
        pairs=pairs,
        out=config.out / "probes",
        raters=raters,
        max_per_prompt=1,
        max_prompts=config.probe_prompts,
        strengths=[1.0],
        seed=config.seed,
        **shared,
    )
    return benchmark, probes if config.probe_prompts else None


def audit_files(
    folder: PairsFolder,
    title: str,
    page: Path,
    rater: RaterAudit | None = None,
    *,
    beside: Sequence[str] = (),
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Audit the set of a folder, and return what writes audit.html, audit.json and audit.txt.

    Without the extra `report` there is no audit.html, which is printed.

    Args:
        folder: the set.
        title: heading of the page.
        page: path of the page, for links to other pages.
        rater: the rater's part, if there is one.
        beside: pages in the same folder to link to, see `page_links`.
        split: only pairs of this split.
        columns: columns of the pairs, see `read_any_pairs`.
        seed: seed of folds.
    """
    table = read_any_pairs(folder.files["pairs"], columns)
    if split is not None:
        table = table.filter(pc.equal(table["split"], split))
    ratings, per_story, annotators = folder.files.get("ratings"), 1.0, None
    if ratings is not None:
        schema = {name: column.type for name, column in empty_columns(VERDICTS, 0).items()}
        verdicts = pa.schema(schema).empty_table()
        path = Path(ratings)
        within = read_any_pairs(path.parent / "all_pairs.parquet")
        annotators = compare_annotators(verdicts, path, within)
        per_story = _people_per_story(path)
    rules = (folder.manifest or {}).get("config", {})
    by_rule = ["later"] if rules.get("chosen_later") else []
    p_values = list(rater.p_values.values()) if rater else []
    audit = audit_pairs(table, annotators, per_story, seed, by_rule, p_values)
    of_rater = list(rater_findings(rater, audit.tests - len(p_values))) if rater else []
    findings = sorted(
        [*audit.findings, *of_rater],
        key=lambda finding: (-finding.severity, finding.kind),
    )
    text = "\n".join(_lines(audit, findings)) + "\n"
    files = {
        "audit.json": partial(write_json, audit_json(audit, findings, rater)),
        "audit.txt": partial(Path.write_text, data=text, encoding="utf-8"),
    }
    try:
        content = _page(folder, title, table, audit, findings, rater)
        manifest = (
            {} if folder.manifest is None else {"pairs": json.dumps(folder.manifest, indent=2)}
        )
        html = render(content, manifest, page_links(page, beside))
    except MissingExtraError as error:
        print(f"no page: {error}")
        return files
    return {"audit.html": partial(Path.write_text, data=html, encoding="utf-8"), **files}


def _page(
    folder: PairsFolder,
    title: str,
    table: pa.Table,
    audit: SetAudit,
    findings: Sequence[Finding],
    rater: RaterAudit | None,
) -> Page:
    """The content of audit.html; MissingExtraError without the extra `report`."""
    sources = sorted(set(table["label_source"].to_pylist()))
    sections = [
        _findings_section(audit, findings),
        *folder.funnel_sections(),
        *([rater_section(rater)] if rater else []),
        _cues_section(audit),
        _size_section(audit),
        _leakage_section(audit),
        *_balance_sections(table),
        *folder.sections(table),
    ]
    lead = findings[0].sentence if findings else nothing_found(audit)
    facts = f"{audit.size['pairs']:,} pairs under {audit.size['prompts']:,} prompts. "
    return Page(title, lead, facts + made_by(folder.manifest, sources), sections, sources)


def _people_per_story(ratings: Path) -> float:
    rows = overall_ratings(read_table(ratings, RATINGS)).to_pylist()
    people = [row["story_id"] for row in rows if row["rater_kind"] == "person"]
    return len(people) / max(len(set(people)), 1)


def nothing_found(audit: SetAudit) -> str:
    """The smallest effects that the set can detect."""
    if audit.detectable is None:
        return "Nothing was found, and this set is too small to find anything but a leak."
    return (
        f"None of the {audit.tests} cues tested was found. At this size, a cue that decides "
        f"{percent(audit.detectable)} of the pairs would be found with a power of 80 % (after "
        "Holm)."
    )


def audit_json(
    audit: SetAudit, findings: Sequence[Finding], rater: RaterAudit | None
) -> dict[str, Any]:
    """The audit as JSON values, for cards and passports; unknown numbers are null."""
    cues = {
        result.cue.name: {
            "agreement": result.agreement,
            "effect": result.alone,
            "held_fixed": result.held_fixed,
            "p_holm": result.p_holm,
            "is_stated": result.is_stated,
        }
        for result in audit.results
    }
    content: dict[str, Any] = {
        "findings": list(findings),
        "nothing_found": None if findings else nothing_found(audit),
        "set": audit.size,
        "tests": audit.tests,
        "detectable": audit.detectable,
        "detectable_difference": audit.detectable_difference,
        "cues": cues,
        "leakage": audit.leakage,
        "two_annotators": audit.annotators and audit.annotators.two_annotators,
        "two_decided": audit.annotators and audit.annotators.two_decided,
        "alpha": audit.annotators and audit.annotators.alpha,
        "ceiling": audit.ceiling,
        "difficulty_spread": audit.annotators and audit.annotators.difficulty_spread,
        "notes": audit.notes,
    }
    if rater is not None:
        content["rater"] = plain(rater.row) | {
            "prefers_longer": rater.prefers_longer,
            "labels_longer": rater.labels_longer,
            "against_length": rater.against_length,
            "mimic": rater.mimic,
            "reproduced": rater.reproduced,
            "groups": rater.groups,
            "fooled_by": [probe.probe for probe in rater.probes if probe.is_fooled],
        }
    return dict(plain(content))


def _lines(audit: SetAudit, findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return [nothing_found(audit)]
    lines = [
        f"{k}. {finding.sentence} {finding.advice}"
        for k, finding in enumerate(findings[:_ON_TOP], 1)
    ]
    return [
        *lines,
        f"The clearest of {audit.tests} tests, corrected together: expect smaller shares on new "
        "prompts.",
    ]


# The page -------------------------------------------------------------------------------------


def _findings_section(audit: SetAudit, findings: Sequence[Finding]) -> Section:
    note = (
        "Worst first. Intervals are 95 %, clustered by prompt. A cue is reported if it is "
        f"significant at {percent(ALPHA)} after Holm's correction over the {audit.tests} tests of "
        "this page, controlling for those already reported; leaks and copies are counted. These "
        f"are the clearest of {audit.tests} tests, so expect smaller shares on new prompts. That a "
        "cue wins does not show that readers vote for it: longer stories may be better."
    )

    def table(some: Sequence[Finding]) -> Table:
        rows = [
            [Cell(finding.sentence, is_text=True, is_bold=True), Cell(finding.advice, is_text=True)]
            for finding in some
        ]
        return Table(["finding", "what to do"], rows)

    top, more = findings[:_ON_TOP], findings[_ON_TOP:]
    warnings = [] if findings else [nothing_found(audit)]
    parts = [Section("Further findings", table=table(more), fold=False)] if more else []
    return Section("Findings", note, table(top) if top else None, warnings=warnings, parts=parts)


def _cues_section(audit: SetAudit) -> Section:
    def row(result: AuditResult) -> list[Any]:
        return [
            Cell(result.cue.texts[0], is_text=True, is_bold=result.is_stated),
            Cell(scale=result.agreement),
            stacked(result.agreement),
            result.alone.n,
            stacked(result.held_fixed, is_signed=True),
            Cell(p_value(result.p_holm), ["reported"] if result.is_stated else []),
        ]

    results = sorted(audit.results, key=lambda result: -abs(result.agreement.mean - 0.5))
    note = (
        "How often each cue names the chosen story; a cue that does not differ counts one half. "
        "Others held fixed: the cue's coefficient in a linear model of all counted cues, in -1 to "
        "1; models and names are learnt out of fold, on other prompts. None reads stories."
    )
    heading = [
        "the chosen story is",
        ENDS,
        "share [95 %]",
        "pairs that\ndiffer",
        "others\nheld fixed",
        "Holm",
    ]
    return Section(
        "Cues that decide without reading",
        note,
        Table(heading, [row(result) for result in results]) if results else None,
        remarks=["Not tested: " + " ".join(audit.notes)] if audit.notes else [],
        name="cues",
    )


def _size_section(audit: SetAudit) -> Section:
    size, two = audit.size, audit.annotators
    rows: list[list[Any]] = [
        ["pairs of all splits", size["pairs"]],
        [
            "prompts of all splits (effective)",
            f"{size['prompts']:,} ({size['effective_prompts']:,.0f})",
        ],
        ["stories, and per prompt", f"{size['stories']:,}, {size['stories_per_prompt']:.1f}"],
        ["smallest share that a cue must decide to be found", percent(audit.detectable)],
        [
            "smallest difference of two raters that disagree on 30 % of the pairs",
            percent(audit.detectable_difference),
        ],
    ]
    if two is not None:
        rows += [
            ["two annotators prefer the same story, ties as ½", two.two_annotators],
            ["the same without ties", two.two_decided],
            ["one annotator against the mean of the others", two.one_annotator],
            ["Krippendorff's alpha of their ratings", two.alpha],
            [
                "ceiling for any rater, if annotators err independently"
                + (" (upper bound)" if math.isnan(two.difficulty_spread) else ""),
                audit.ceiling,
            ],
        ]
    note = (
        "Detectable: with a power of 80 %, at 5 % after Holm for a cue and without correction for "
        "two raters (docs/power.md)."
    )
    if two is None:
        note += " There are no ratings by annotators, so label noise and the ceiling are unknown."
    cells = [[Cell(str(name), is_text=True), value] for name, value in rows]
    return Section("Power of the set", note, Table(["", ""], cells, is_narrow=True), name="size")


def _leakage_section(audit: SetAudit) -> Section:
    if audit.leakage is None:
        note = "There is one split, so nothing can leak."
        return Section("Shared by splits", note, name="leakage")
    rows = [
        [Cell(f"shared {kind.replace('_', '-')}", is_text=True), *others]
        for kind, *others in (counts.values() for counts in audit.leakage["shared"])
    ]
    table = Table(["", "split", "split", "number"], rows)
    return Section("Shared by splits", table=table, name="leakage")


def _balance_sections(table: pa.Table) -> list[Section]:
    """Language by split and side, if texts are in several; the longer story's share over time."""
    rows, shares = [], []
    for split in sorted(set(table["split"].to_pylist())):
        split_pairs = table.filter(pc.equal(table["split"], split))
        cells: list[Any] = [Cell(split, is_text=True), split_pairs.num_rows]
        for side in SIDES:
            texts = zip(
                split_pairs[side].to_pylist(),
                split_pairs[f"{side}_n_words"].to_pylist(),
                strict=True,
            )
            shares.append(float(np.mean([language_of(*text) == "zh" for text in texts])))
            cells.append(percent(shares[-1]))
        rows.append(cells)
    heading = ["split", "pairs", "chosen without\nspaces (Chinese)", "rejected"]
    shown = []
    times = table["chosen_created_utc"].to_numpy(zero_copy_only=False).astype(float)
    dated = np.flatnonzero(np.isfinite(times))
    if len(dated) >= _PERIODS * _MIN_PER_PERIOD:
        prompts = np.array(connected_prompts(table))
        longer = (np.nan_to_num(np.sign(length_differences(table))) + 1) / 2
        order = dated[np.argsort(times[dated], kind="stable")]
        periods = []
        for part in np.array_split(order, _PERIODS):
            ends = (str(np.datetime64(int(times[part[k]]), "s"))[:7] for k in (0, -1))
            share = jackknife_interval(longer[part], prompts[part])
            periods.append((" to ".join(ends), [[share]]))
        drawn = figures.dots(periods, ["the longer story"], "is the chosen story")
        caption = "Quarters of the pairs by time of the chosen story."
        shown = [Figure("The longer story over time", caption, drawn)]
    has_languages = min(shares) < 1 and max(shares) > 0
    if not has_languages and not shown:
        return []
    return [
        Section("Balance", table=Table(heading, rows) if has_languages else None, figures=shown)
    ]
