"""Tree-of-Writing: texts of HoWToBench, rated leaf by leaf and weighed by a plan.

A writer answers an instruction once. A planner weighs four aspects of content for the instruction,
judges rate them and others one by one, mostly against a reference text, and the ratings become a
grade from the leaves to the root ("HoWToBench: Holistic Evaluation for LLM's Capability in
Human-level Writing using Tree of Writing", ACL 2026). `as_published` follows the published code
(github.com/ZhuoerFeng/ACL2026-Tree-of-Writing) with its defects, otherwise the paper. The packaged
prompts are our own; `texts` takes the published file. docs/writers.md lists what differs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import NonNegativeFloat

from litbench.data.ingest import read_foreign
from litbench.data.records import TURNS, Column, Schema
from litbench.data.tables import read_table
from litbench.judges.answers import Question, Sampling
from litbench.judges.rubric import Rated
from litbench.judges.session import (
    ATTEMPTS,
    WRITER,
    Session,
    Turn,
    UnfinishedError,
    gather_all,
)
from litbench.raters.templates.delimiters import without_delimiters
from litbench.raters.templates.parser import without_reasoning
from litbench.raters.templates.rubric import Criterion, Rubric, load_rubric, rubric_files
from litbench.raters.templates.template import fill
from litbench.runs.config import nearest, read_yaml
from litbench.runs.errors import ConfigError
from litbench.writers.grades import CHARACTERS
from litbench.writers.protocol import (
    Grade,
    Item,
    ItemRatings,
    Protocol,
    RoleDefault,
    Written,
    rate_texts,
    written_text,
)
from litbench.writers.texts import check_texts, read_texts, texts_record
from litbench.writers.tow.headings import (
    formatting_score,
    paragraph_statistics,
    published_formatting_score,
)
from litbench.writers.tow.overlap import bleu1, ngram_precision, rouge_l, rouge_n, tokenize
from litbench.writers.tow.plans import (
    WeightPlan,
    broken_rule,
    final_plan,
    planned_shares,
    published_plan,
    stated_weights,
)
from litbench.writers.tow.tree import (
    CONTENT,
    FORMAT,
    IMPRESSION,
    NODES,
    PUBLISHED_WEIGHTS,
    grade_tree,
    leaf_score,
)

PLANNER = "planner"
TaskName = Literal["completion", "guide", "open"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)
INSTRUCTIONS = Schema(
    "instructions",
    (
        Column("instruction_id", "text", "unique name of the instruction", required=True),
        Column("task", "text", "what is asked for", required=True, choices=TASKS),
        Column("genre", "text", "genre, as the map of genres names it", required=True),
        Column("instruction", "text", "what the writer is asked for", required=True),
        Column("information", "text", "text with a gap (completion) or outline (guide)"),
        Column("reference", "text", "a good answer"),
    ),
    key=("instruction_id",),
)
_FOLDER = Path(__file__).parent
_FORMAT_RATED = ("plots_structure", "paragraphing")
# Leaves that are rated without a reference.
_ALONE = ("paragraphing",)
_GAP = re.compile(r"\[\s*fill[\s_]*in[\s_]*the[\s_]*blank\s*\]", re.I)
_PROMPTS = "prompts.yaml"
# With the first 16 digits of its SHA-256 as of commit efe51d9 (June 2026).
_PUBLISHED_FILES = {_PROMPTS: "993e7a4e85e5f504"}
_PLACES = ("instruction", "reference", "content")
# Kinds of the paper's creative cluster (Table 2).
_CREATIVE = ("argumentative", "prose", "article", "documentary", "fiction", "poetry")
# Placeholders of the published texts, by key; the last three are for programs of theirs.
_PUBLISHED_TEXTS = {
    "edge_weighting": ("instruction",),
    **dict.fromkeys(("opening_ending", "language_rhetoric", "argumentative_logic"), _PLACES),
    **dict.fromkeys(("emotion", "proper_instance", "plots_structure", "impression"), _PLACES),
    "paragraphing": ("instruction", "content"),
    "chain_of_writing": ("content",),
    "llm_single_pass": _PLACES,
    "rubric_evaluation": ("instruction", "rubric", "reference", "content"),
}
_PUBLISHED_NAMES = {"logic": "argumentative_logic"}
# The baseline whose judge plans its own criteria.
_AUTO_PLAN = "auto_plan"


@dataclass
class TowOptions:
    """Options of the protocol `tow`.

    Attributes:
        instructions: table with the columns of `INSTRUCTIONS`.
        columns: maps them to the table's columns or SQL expressions over them.
        where: SQL condition on the table's rows.
        tasks: only instructions of these tasks.
        texts: folder with the published `prompts.yaml` (`code/config/` of the repository); null for
            our own.
        as_published: rules of the published code, with its defects, instead of the paper's; it
            plans the weights of content only, where the paper plans those of format, too (3.3).
        weights: weights of content, format and impression; by default the numbers of their leaves
            (`as_published` 5, 3 and 1). The paper's Table 7 implies 0.4, 0.3 and 0.2; weights that
            sum to less than 1 are not divided by their sum.
        reference: `item`, `none`, or `model:NAME` for the texts of that writer, which is then not
            rated itself.
        reference_turns: table of turns with the texts of the writer NAME.
        baselines: rubrics, packaged or files, by which the whole text is rated besides, such as
            `auto_plan`; each is a quantity.
        overlap: also compute BLEU and ROUGE with the reference; needs the extra `prose`.
    """

    instructions: Path
    columns: dict[str, str] | None = None
    where: str | None = None
    tasks: list[TaskName] = field(default_factory=lambda: [*TASKS])
    texts: Path | None = None
    as_published: bool = False
    weights: dict[str, NonNegativeFloat] = field(default_factory=dict)
    reference: str = "item"
    reference_turns: Path | None = None
    baselines: list[str] = field(default_factory=list)
    overlap: bool = False


@dataclass(frozen=True)
class Task:
    """An instruction and its data; `reference` is the text that the options ask for."""

    task: str
    kind: str
    instruction: str
    information: str
    reference: str | None

    @property
    def question(self) -> str:
        """The instruction and, below a blank line, the information."""
        return "\n\n".join(filter(None, [self.instruction, self.information]))


class Tow(Protocol):
    """The protocol; see the module."""

    options = TowOptions
    source = "HoWToBench (ACL 2026)"
    headline = "overall"
    writer = Sampling(temperature=None, max_tokens=8192)
    judge = Sampling(temperature=0.0, max_tokens=4096)
    roles: ClassVar[Mapping[str, RoleDefault]] = {
        PLANNER: RoleDefault(Sampling(temperature=0.0, max_tokens=4096), is_judge=True)
    }

    def __init__(self, options: TowOptions) -> None:
        self._options = options
        self._texts = read_yaml(_FOLDER / "texts.yaml")
        # The paper's tree has four content leaves, the published code's a fifth.
        self._content = [
            leaf for leaf in CONTENT if options.as_published or leaf != "proper_instance"
        ]
        counts = dict(zip(NODES, (len(self._content), len(FORMAT), 1), strict=True))
        self._weights = options.weights or (PUBLISHED_WEIGHTS if options.as_published else counts)
        _, _, self._model = options.reference.partition(":")
        self._check()
        self._published = {} if options.texts is None else _read_published(options.texts)
        leaves = (*self._content, *_FORMAT_RATED, IMPRESSION)
        self.rubrics = {leaf: self._rubric(leaf) for leaf in leaves}
        self._baselines = {Path(name).stem: load_rubric(name) for name in options.baselines}
        self.rubrics |= self._baselines
        weights = ", ".join(f"{weight:g}" for weight in self._weights.values())
        self._flags = [f"root weights {weights}", f"reference {options.reference}"]
        self._flags += ["as published"] * options.as_published
        self._items = self._read_items()

    def items(self) -> list[Item]:
        return self._items

    def files(self) -> dict[str, Path | str]:
        """Files of the user, also those of baselines."""
        rubrics = [name for name in self._options.baselines if rubric_files(name)]
        return super().files() | {f"options.baselines.{name}": Path(name) for name in rubrics}

    def record(self) -> dict[str, Any]:
        """Rules, weights and reference, the texts' digests, and what is not as published."""
        options = self._options
        reasons, digests = texts_record(
            options.texts, _PUBLISHED_FILES, "prompts are LitBench's own"
        )
        ours = [*self._baselines]
        ours += [] if options.as_published else ["the plan of format", "a second try at a plan"]
        if options.texts is not None and ours:
            reasons.append(f"no published text, so LitBench's own: {', '.join(ours)}")
        if not options.as_published:
            reasons.append("read and graded as the paper says, not as the published code does")
        return {
            "as_published": options.as_published,
            "weights": self._weights,
            "reference": options.reference,
            "texts": digests,
            "not_comparable": [
                *reasons,
                "published grades are by GPT-4o; other judges rate differently",
            ],
        }

    async def write(self, session: Session, item: Item) -> Written:
        """Have the text written, and measure it."""
        task: Task = item.content
        turn, text = await self._write(session, task)
        flags = [*self._flags]
        if task.task == "completion" and not _GAP.search(task.information):
            flags.append("no gap marker")
        if not text:
            flags.append("no text")
        elif turn.outcome == "cut":
            flags.append("cut")
        # With reasoning, which is not part of the text.
        measures = self._measures(task, text, turn.text if text else "")
        grades: list[Grade] = [(None, *measure, flags) for measure in measures.items()]
        return Written({"text": text} if text else {}, flags, grades)

    async def rate(self, session: Session, item: Item, written: Written, judge: str) -> ItemRatings:
        """Have the text planned and rated, and grade it."""
        task: Task = item.content
        if session.writer == self._model:
            return ItemRatings()
        has_reference = task.reference is not None or self._options.reference == "none"
        flags = [*written.flags, *(() if has_reference else ("no reference",))]
        if not written.texts or not has_reference:
            return ItemRatings(grades=[(judge, "overall", None, flags)])
        plans, rated = await gather_all(
            self._plans(session, task), self._rate(session, task, written.texts["text"], judge)
        )
        content, of_format = plans["content"], plans.get("format")
        flags = [*flags, *(flag for plan in plans.values() for flag in plan.flags)]
        prefixes = {"content": "", "format": "format "}
        grades: list[Grade] = [
            (PLANNER, f"{kind}{prefixes[node]}weight {leaf}", weight, flags)
            for node, plan in plans.items()
            for kind, weights in (("", plan.weights), ("raw ", plan.raw))
            for leaf, weight in weights.items()
        ]
        baselines = {name: rated.pop(name) for name in self._baselines}
        leaves = {
            leaf: leaf_score(
                leaf, reading.ratings[leaf].rating, as_published=self._options.as_published
            )
            for leaf, reading in rated.items()
        }
        leaves |= {name: grade for _, name, grade, _ in written.grades if name == "formatting"}
        shares = None if of_format is None else of_format.weights
        tree = grade_tree(leaves, content.weights, self._weights, shares)
        alike = dict.fromkeys(self._content, 1 / len(self._content))
        quantities = {**leaves, **tree.nodes, "overall": tree.overall}
        quantities["overall with equal weights"] = grade_tree(leaves, alike, self._weights).overall
        for node in tree.nodes:
            weights = {**self._weights, node: 0.0}
            without = grade_tree(leaves, content.weights, weights, shares)
            quantities[f"overall without {node}"] = without.overall
        if self._options.as_published:
            quantities |= {
                name: round(grade, 4)
                for name, grade in quantities.items()
                if name.startswith("overall") and grade is not None
            }
        missing = [f"{leaf} missing" for leaf, reading in rated.items() if reading.missing]
        every = [*flags, *tree.flags, *missing]
        grades += [(judge, name, grade, every) for name, grade in quantities.items()]
        grades += [(judge, name, baseline.grade, flags) for name, baseline in baselines.items()]
        if _AUTO_PLAN in baselines:
            shares = planned_shares(baselines[_AUTO_PLAN].reply.text)
            grades += [(judge, f"share {name}", share, flags) for name, share in shares.items()]
        whole = Rated(
            {leaf: reading.ratings[leaf] for leaf, reading in rated.items()},
            quantities["overall"],
            rated[IMPRESSION].reply,
            [turn for reading in rated.values() for turn in reading.turns],
        )
        return ItemRatings({"text": whole, **baselines}, grades)

    # Asking --------------------------------------------------------------------------------------

    async def _ask(
        self, session: Session, role: str, messages: Question, step: str, attempt: int
    ) -> tuple[Turn, str]:
        """Ask writer or planner; the reply is empty if there is none.

        Raises:
            UnfinishedError: the request failed.
        """
        turn = await session.ask(role, messages, step=step, attempt=attempt)
        # A recorded role may have fewer attempts.
        if attempt and turn.outcome == "error" and session.is_recorded(role):
            return turn, ""
        return turn, written_text(turn)

    async def _write(self, session: Session, task: Task) -> tuple[Turn, str]:
        """Ask the writer until there is a text; it is empty if there is none."""
        for attempt in range(ATTEMPTS):
            question = [("user", task.question)]
            turn, text = await self._ask(session, WRITER, question, "text", attempt)
            if text:
                break
        return turn, text

    async def _plans(self, session: Session, task: Task) -> dict[str, WeightPlan]:
        """Ask the planner for the weights of the leaves of each node that is planned."""
        leaves = {"content": self._content}
        if not self._options.as_published and task.task != "completion":
            leaves["format"] = [*FORMAT]
        plans = await gather_all(*(self._plan(session, task, *node) for node in leaves.items()))
        return dict(zip(leaves, plans, strict=True))

    async def _plan(
        self, session: Session, task: Task, node: str, leaves: Sequence[str]
    ) -> WeightPlan:
        """Ask the planner for the weights of a node's leaves."""
        as_published = self._options.as_published
        planned, asked = leaves, task.instruction
        if as_published:
            planned, asked = [leaf for leaf in leaves if leaf != "proper_instance"], task.question
        # The published prompts plan content only.
        published = self._published.get("edge_weighting") if node == "content" else None
        names = self._texts["leaves"]
        texts = {
            "instruction": without_delimiters(asked) if published is None else asked,
            "leaves": "\n".join(f"- {leaf}（{names[leaf]}）" for leaf in planned),
            "count": str(len(planned)),
        }
        messages = [("user", fill((published or self._texts["plan"]).strip(), texts))]
        step = "plan" if node == "content" else f"{node}_plan"
        stated = None
        for attempt in range(ATTEMPTS):
            _, reply = await self._ask(session, PLANNER, list(messages), step, attempt)
            if as_published:
                try:
                    return published_plan(reply, leaves)
                except ValueError as error:
                    problem = f"plan: {error}: the published code loses the item"
                    raise UnfinishedError(problem) from error
            newest = stated_weights(reply, planned)
            stated = stated if newest is None else newest
            if (broken := broken_rule(newest)) is None:
                break
            again = fill(self._texts["plan_again"].strip(), {**texts, "broken": broken})
            messages += [("assistant", reply or "……"), ("user", again)]
        return final_plan(stated, planned, attempt + 1)

    async def _rate(self, session: Session, task: Task, text: str, judge: str) -> dict[str, Rated]:
        filled = {"prompt": task.question, "text": text, "reference": task.reference or ""}
        skipped = _FORMAT_RATED if task.task == "completion" else ()
        questions = {
            leaf: (rubric, filled) for leaf, rubric in self.rubrics.items() if leaf not in skipped
        }
        as_published = self._options.as_published
        return await rate_texts(session, judge, questions, as_published=as_published)

    # Measuring -----------------------------------------------------------------------------------

    def _measures(self, task: Task, text: str, written: str) -> dict[str, float]:
        """Quantities without a judge; those of an empty text are its lengths only."""
        measured: dict[str, float] = {
            "input characters": len(task.instruction) + len(task.information),
            "output characters": len(written),
        }
        parts = ("instruction", "information", "reference")
        lengths = {f"{CHARACTERS}{part}": len(getattr(task, part) or "") for part in parts}
        measured |= {name: length for name, length in lengths.items() if length}
        if not text:
            return measured
        measured |= paragraph_statistics(text)
        if task.task != "completion":
            formatting = (
                published_formatting_score(written if written.strip() == text else text)
                if self._options.as_published
                else formatting_score(text, task.kind)
            )
            measured |= {} if formatting is None else {"formatting": formatting}
        if self._options.overlap and task.reference:
            sides = (tokenize(text), tokenize(task.reference))
            measured |= {
                "bleu1": bleu1(*sides),
                "unigram precision": ngram_precision(*sides, 1),
                "rouge1": rouge_n(*sides, 1),
                "rouge2": rouge_n(*sides, 2),
                "rouge_l": rouge_l(*sides),
            }
        return {name: number for name, number in measured.items() if math.isfinite(number)}

    # Reading -------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Refuse options that contradict each other."""
        options = self._options
        if set(self._weights) != set(NODES):
            raise ConfigError(f"weights is {options.weights}: give {', '.join(NODES)}")
        kind = options.reference.partition(":")[0]
        is_model = kind == "model" and self._model and options.reference_turns is not None
        if options.reference not in ("item", "none") and not is_model:
            raise ConfigError(
                f"reference is '{options.reference}': write item, none, or model:NAME with a table "
                "of its turns as reference_turns"
            )
        if options.reference == "none" and options.texts is not None:
            raise ConfigError(
                "reference is 'none': the published prompts compare with a reference: set item or "
                "model:NAME, or leave texts out"
            )

    def _rubric(self, leaf: str) -> Rubric:
        """The rubric of a leaf; with a reference, its criterion in the frame of references."""
        rubric = load_rubric(f"tow_{leaf}")
        if self._published:
            ours = {"instruction": "{prompt}", "content": "{text}"}
            text = self._published[_PUBLISHED_NAMES.get(leaf, leaf)]
            criteria = (Criterion(leaf),)
            return replace(rubric, text=fill(text.strip(), ours), criteria=criteria, is_plain=True)
        if self._options.reference == "none" or leaf in _ALONE:
            return rubric
        bands = self._texts["bands"].get(leaf, self._texts["bands"]["default"])
        text = self._texts["with_reference"].replace("{bands}", bands)
        return replace(rubric, text=text.strip())

    def _read_items(self) -> list[Item]:
        options = self._options
        genres = read_yaml(_FOLDER / "genres.yaml")
        rows = read_foreign(
            options.instructions, INSTRUCTIONS, columns=options.columns, where=options.where
        ).to_pylist()
        references = {}
        if options.reference == "item":
            references = {row["instruction_id"]: row["reference"] or None for row in rows}
        elif self._model and options.reference_turns is not None:
            references = {
                turn["prompt_id"]: without_reasoning(turn["text"]) or None
                for turn in read_table(options.reference_turns, TURNS).to_pylist()
                if turn["writer"] == self._model and turn["role"] == WRITER
            }
        items = []
        for row in rows:
            name, genre = row["instruction_id"], row["genre"]
            if row["task"] not in options.tasks:
                continue
            if genre not in genres:
                raise ConfigError(
                    f"{options.instructions}: {name} has the genre '{genre}', which the map of "
                    f"genres does not know: {nearest(genre, list(genres))}, or give an "
                    "expression as --options.columns.genre"
                )
            task = Task(
                row["task"],
                genres[genre],
                row["instruction"],
                row["information"] or "",
                references.get(name),
            )
            cluster = "creative" if task.kind in _CREATIVE else "functional"
            groups = {"genre": task.kind, "task": task.task, "cluster": f"{cluster} {task.task}"}
            items.append(Item(name, task.question, task, groups))
        if not items:
            raise ConfigError(
                f"{options.instructions}: no instruction of tasks {', '.join(options.tasks)}"
            )
        return items


def _read_published(folder: Path) -> dict[str, str]:
    """The published texts by key; ConfigError if they do not have the published form."""
    origin = "code/config/ of github.com/ZhuoerFeng/ACL2026-Tree-of-Writing"
    path = folder / _PROMPTS
    read_texts(folder, _PUBLISHED_FILES, origin)
    texts = read_yaml(path)
    check_texts(texts, _PUBLISHED_TEXTS, path)
    return {name: texts[name] for name in _PUBLISHED_TEXTS}
