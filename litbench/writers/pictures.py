"""Pictures of the writing benchmarks' papers, from the grades and texts of runs."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from litbench.evaluation.report import figures
from litbench.evaluation.report.document import Figure, Section, Table, short_name
from litbench.metrics.intervals import mean_interval
from litbench.raters.templates.rubric import load_rubric
from litbench.runs.errors import ConfigError
from litbench.writers.grades import (
    WEIGHT,
    GradeTable,
    Repeats,
    cells_of,
    grades_by_text,
    length_pairs,
    without_people,
)
from litbench.writers.groups import NO_COLUMNS, groups_of_prompts, quantities_by_prompt
from litbench.writers.metrics import grouped, writer_rows
from litbench.writers.webnovel.placement import ReferenceDistribution

# So many books make a distribution.
_FEWEST_BOOKS = 10
# Texts in the box plot of repeated judgements, and characters of the names of their prompts.
_MAX_BOXES, _BOX_NAME = 40, 30
# Scatter plots of one section.
_MAX_PAIRS = 6


def pictures(
    graded: GradeTable,
    quantity: str,
    repeats: Sequence[Repeats],
    *,
    by: Sequence[str] = (),
    words: tuple[int, int] | None = None,
    novels: Path | None = None,
) -> list[Section]:
    """The sections of pictures that the runs have the data for.

    Args:
        graded: the grades.
        quantity: the quantity that is compared.
        repeats: its repeated judgements.
        by: groupings; `judge` adds scatter plots, a column of the stories the planner's weights.
        words: bounds of the length that writers were asked for.
        novels: file of the distribution of human novels (protocol webnovel).
    """
    sections = [
        Section("Place among novels", *_placement(graded, novels)) if novels else None,
        _lengths(graded, words),
        _length_scatters(graded, quantity),
        _judge_scatters(graded, quantity) if "judge" in by else None,
        *(_weights(graded, column) for column in by),
        _repeated(repeats, quantity),
        _distributions(graded),
    ]
    return [section for section in sections if section is not None]


def _placement(graded: GradeTable, path: Path) -> tuple[str, Table, list[Figure]]:
    """Writers on the distribution of novels, and its components (WebNovelBench, Figures 1, 6)."""
    names = [criterion.name for criterion in load_rubric("webnovel").criteria]
    novels = ReferenceDistribution.read(path, names)
    cells = without_people(cells_of(graded, "value"))
    if not cells:
        raise ConfigError("novels: no run has the quantity 'value': run webnovel with a reference")
    rows = writer_rows(cells)
    drawings = {
        "Writers": figures.dots(
            [(short_name(row.writer), [[row.grade]]) for row in rows],
            ["writers"],
            "normalised score",
            levels=np.quantile(novels.values, (1 / 3, 2 / 3)).tolist(),
            behind=novels.values,
        ),
        "Weights of the criteria": figures.bars(
            dict(zip(names, novels.weights.tolist(), strict=True)), "weight"
        ),
    }
    if novels.explained:
        components = {f"component {n}": share for n, share in enumerate(novels.explained, 1)}
        drawings["Principal components"] = figures.bars(components, "share of variance")
    about = (
        f"Mean normalised score of each writer, with its interval, above the density of "
        f"{len(novels.values):,} novels. Dotted: the novels' thirds (low, medium, high); the paper "
        "gives no rule for its zones."
    )
    columns = (names, *(values.tolist() for values in (novels.mean, novels.std, novels.weights)))
    table = Table(["criterion", "mean", "deviation", "weight"], list(zip(*columns, strict=True)))
    return about, table, [Figure(name, "", drawn) for name, drawn in drawings.items()]


def _lengths(graded: GradeTable, words: tuple[int, int] | None) -> Section | None:
    """Mean length of each writer's texts (WebNovelBench, Figure 7)."""
    rows = graded.story_rows("source", "prompt_id", "n_words")
    if not rows:
        return None
    means = [
        (
            short_name(writer),
            [[mean_interval(np.array([r[2] for r in texts]), [r[1] for r in texts])]],
        )
        for writer, texts in grouped(rows, lambda row: row[0]).items()
    ]
    means.sort(key=lambda row: -row[1][0][0].mean)
    label = "words of a text (characters in Chinese)"
    drawn = figures.dots(means, ["words"], label, levels=words or ())
    asked = f" Dotted: the {words[0]:,} to {words[1]:,} that were asked for." if words else ""
    caption = f"Mean over texts and 95 % interval, by prompt.{asked}"
    return Section("Mean lengths", figures=[Figure("Lengths", caption, drawn)])


def _length_scatters(graded: GradeTable, quantity: str) -> Section | None:
    """Lengths of input and text, and grades (HoWToBench, Figure 5)."""
    values = grades_by_text(graded, quantity)
    return _scatters("Lengths and grades", values, length_pairs(values)[:_MAX_PAIRS])


def _judge_scatters(graded: GradeTable, quantity: str) -> Section | None:
    """Each judge, and people, against each other on single texts (HoWToBench, Figure 4)."""
    cells = grouped(cells_of(graded, quantity), lambda cell: cell.judge)
    values: dict[str, dict[tuple[str, ...], float]] = {
        judge: {(cell.writer, cell.prompt): cell.grade for cell in of_judge}
        for judge, of_judge in cells.items()
    }
    pairs = list(itertools.combinations(values, 2))[:_MAX_PAIRS]
    return _scatters("Judges on single texts", values, pairs)


def _scatters(
    title: str,
    values: Mapping[str, Mapping[tuple[str, ...], float]],
    pairs: Sequence[tuple[str, str]],
) -> Section | None:
    """A scatter plot for each pair of columns, whose values are by text; writers have colours."""
    about = "Lines: least squares, of each writer and (bold) of all. At most 600 texts."
    drawn = []
    for x, y in pairs:
        shared = grouped((key for key in values[x] if key in values[y]), lambda key: key[0])
        points = {
            short_name(writer): (
                np.array([values[x][key] for key in keys]),
                np.array([values[y][key] for key in keys]),
            )
            for writer, keys in shared.items()
        }
        if points:
            drawn.append(Figure(f"{y} on {x}", about, figures.scatter(points, x, y)))
    return Section(title, figures=drawn) if drawn else None


def _weights(graded: GradeTable, column: str) -> Section | None:
    """The spread of the planner's weights within each group (HoWToBench, Figures 3 and 6)."""
    weights = quantities_by_prompt(graded, WEIGHT) if column not in NO_COLUMNS else {}
    if not weights:
        return None
    names = groups_of_prompts(graded, column)
    drawn = []
    for leaf, of_leaf in weights.items():
        by_group = defaultdict(list)
        # Prompts without a text are in no group.
        for prompt in of_leaf.keys() & names.keys():
            by_group[names[prompt]].append(of_leaf[prompt])
        boxes = figures.boxes(sorted(by_group.items()), f"weight of {leaf}")
        drawn.append(Figure(leaf, "Quartiles, median (solid) and mean (dashed).", boxes))
    return Section(f"Spread of the weights by {column}", figures=drawn)


def _repeated(repeats: Sequence[Repeats], quantity: str) -> Section | None:
    """Box plot of repeated judgements (WebNovelBench, Figure 5)."""
    if not repeats:
        return None
    boxes = [
        (f"{_cut_inside(row.prompt)}, {row.writer}, {row.judge}", row.grades)
        for row in repeats[:_MAX_BOXES]
    ]
    about = "Quartiles, median (solid) and mean (dashed) over the judgements of a text."
    drawn = Figure("", about, figures.boxes(boxes, quantity))
    return Section("Box plot of repeated judgements", figures=[drawn])


def _cut_inside(name: str) -> str:
    """A name without its middle, since its end has the sample."""
    half = _BOX_NAME // 2
    return name if len(name) <= _BOX_NAME else f"{name[:half]}…{name[-half:]}"


def _distributions(graded: GradeTable) -> Section | None:
    """Densities of the books' grades by WebNovelBench's criteria and their mean (its Figure 4).

    Writers with fewer than ten books, or without different grades, are left out.
    """
    drawn = []
    for name in (*(criterion.name for criterion in load_rubric("webnovel").criteria), "mean"):
        by_writer = grouped(without_people(cells_of(graded, name)), lambda cell: cell.writer)
        grades = {w: np.array([cell.grade for cell in cells]) for w, cells in by_writer.items()}
        shown = {
            writer: of_writer
            for writer, of_writer in grades.items()
            if len(of_writer) >= _FEWEST_BOOKS and np.ptp(of_writer) > 0
        }
        if shown:
            drawn.append(Figure(name, "", figures.densities(shown, name)))
    normal = "Kernel density over items; dashed: the normal curve of the same mean and deviation."
    # Other protocols have means, too.
    return Section("Distributions", normal, figures=drawn) if len(drawn) > 1 else None
