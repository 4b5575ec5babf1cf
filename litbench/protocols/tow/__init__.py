"""Tree-of-Writing: texts of HoWToBench, rated leaf by leaf and weighed by a plan.

A writer answers an instruction once. A planner weighs four aspects of content for the instruction,
judges rate them and others one by one, mostly against a reference text, and the ratings become a
grade from the leaves to the root ("HoWToBench: Holistic Evaluation for LLM's Capability in
Human-level Writing using Tree of Writing", ACL 2026). The mode `paper` follows the paper,
`released` the published code (github.com/ZhuoerFeng/ACL2026-Tree-of-Writing) with its defects; the
prompts are our own in both. docs/writers.md says what is whose.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from pydantic import NonNegativeFloat

from litbench.config import nearest, read_yaml
from litbench.errors import ConfigError
from litbench.ingest import read_foreign
from litbench.judges.rubric import ATTEMPTS, Rated
from litbench.judges.session import (
    WRITER,
    Session,
    Turn,
    UnfinishedError,
    at_once,
    without_reasoning,
)
from litbench.judges.store import Question, Sampling
from litbench.metrics.overlap import bleu1, ngram_precision, rouge_l, rouge_n, tokenize
from litbench.protocols.headings import (
    formatting_score,
    paragraph_statistics,
    released_formatting_score,
)
from litbench.protocols.protocol import (
    Grade,
    Item,
    ItemRatings,
    Protocol,
    RoleDefault,
    Written,
    rate_texts,
    written_text,
)
from litbench.protocols.tow.plans import (
    Plan,
    broken_rule,
    final_plan,
    released_plan,
    stated_weights,
)
from litbench.protocols.tow.tree import (
    CONTENT,
    IMPRESSION,
    NODES,
    SCHEMES,
    Mode,
    Tree,
    grade_tree,
    leaf_score,
)
from litbench.records import TURNS, Column, Schema
from litbench.tables import read_table
from litbench.templates.delimiters import without_delimiters
from litbench.templates.rubric import PLACEHOLDER, Rubric, load_rubric

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
_STEPS = {WRITER: "text", PLANNER: "plan"}


@dataclass
class TowOptions:
    """Options of the protocol `tow`.

    Attributes:
        instructions: table with the columns of `INSTRUCTIONS`.
        columns: maps them to the table's columns or SQL expressions over them.
        tasks: only instructions of these tasks.
        mode: follow the paper, or the released code with its defects.
        scheme: weights of the tree's nodes: `leaf-count` (the default of the mode `paper`),
            `released` (that of the mode `released`), `table7` (as in the paper's Table 7, which
            sums to 0.9), `custom`.
        weights: weights of content, format and impression in the scheme `custom`.
        proper_instance: whether content has the fifth leaf; always in the mode `released`.
        reference: `item`, `none`, or `model:NAME` for the texts of that writer, which is then not
            rated itself.
        reference_turns: table of turns with the texts of the writer NAME.
        overlap: also compute BLEU and ROUGE with the reference; needs the extra `prose`.
        genres: YAML file that maps genres to kinds of text; null for the packaged one.
    """

    instructions: Path
    columns: dict[str, str] | None = None
    tasks: list[TaskName] = field(default_factory=lambda: [*TASKS])
    mode: Mode = "paper"
    scheme: Literal["leaf-count", "released", "table7", "custom"] | None = None
    weights: dict[str, NonNegativeFloat] = field(default_factory=dict)
    proper_instance: bool = False
    reference: str = "item"
    reference_turns: Path | None = None
    overlap: bool = False
    genres: Path | None = None


@dataclass(frozen=True)
class Task:
    """What is known about an instruction; `reference` is the text that the options ask for."""

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
        self._is_released = options.mode == "released"
        has_fifth = options.proper_instance or self._is_released
        self._content = [leaf for leaf in CONTENT if has_fifth or leaf != "proper_instance"]
        self._scheme_name = options.scheme or ("released" if self._is_released else "leaf-count")
        self._scheme = self._node_weights()
        kind, _, self._model = options.reference.partition(":")
        is_model = kind == "model" and self._model and options.reference_turns is not None
        if options.reference not in ("item", "none") and not is_model:
            raise ConfigError(
                f"reference is '{options.reference}': write item, none, or model:NAME with a table "
                "of its turns as reference_turns"
            )
        leaves = (*self._content, *_FORMAT_RATED, IMPRESSION)
        self.rubrics = {leaf: self._rubric(leaf) for leaf in leaves}
        self._facts = {
            "mode": options.mode,
            "scheme": self._scheme_name,
            "reference": options.reference,
        }
        self._items = self._read_items()

    def items(self) -> list[Item]:
        """The instructions."""
        return self._items

    def record(self) -> dict[str, Any]:
        """Mode, scheme and reference, and what is not as published."""
        return {
            **self._facts,
            "not_comparable": [
                "prompts are LitBench's own",
                "published grades are by GPT-4o; other judges rate otherwise",
            ],
        }

    async def write(self, session: Session, item: Item) -> Written:
        """Have the text written, and measure it."""
        task: Task = item.content
        turn, text = await self._write(session, task)
        flags = [f"{name} {value}" for name, value in self._facts.items()]
        if task.task == "completion" and not _GAP.search(task.information):
            flags.append("no gap marker")
        if not text:
            flags.append("no text")
        elif turn.outcome == "cut":
            flags.append("cut")
        # With reasoning, which is not part of the text.
        measures = self._measures(task, text, turn.text if text else "")
        grades: list[Grade] = [(None, *one, flags) for one in measures.items()]
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
        plan, rated = await at_once(
            self._plan(session, task), self._rate(session, task, written.texts["text"], judge)
        )
        flags = [*flags, *plan.flags]
        grades: list[Grade] = [
            (PLANNER, f"{quantity} {leaf}", weight, flags)
            for quantity, weights in (("weight", plan.weights), ("raw weight", plan.raw))
            for leaf, weight in weights.items()
        ]
        leaves = {
            leaf: leaf_score(leaf, one.ratings[leaf].rating, self._options.mode)
            for leaf, one in rated.items()
        }
        leaves |= {name: grade for _, name, grade, _ in written.grades if name == "formatting"}
        tree = self._tree(leaves, plan.weights)
        equal = self._tree(leaves, dict.fromkeys(self._content, 1 / len(self._content)))
        found = {**leaves, **tree.nodes, "overall": tree.overall}
        found["overall with equal weights"] = equal.overall
        missing = [f"{leaf} missing" for leaf, one in rated.items() if one.missing]
        every = [*flags, *tree.flags, *missing]
        grades += [(judge, name, grade, every) for name, grade in found.items()]
        whole = Rated(
            {leaf: one.ratings[leaf] for leaf, one in rated.items()},
            tree.overall,
            rated[IMPRESSION].reply,
            [turn for one in rated.values() for turn in one.turns],
        )
        return ItemRatings({"text": whole}, grades)

    def _tree(self, leaves: Mapping[str, float | None], weights: Mapping[str, float]) -> Tree:
        is_normalised = self._scheme_name != "table7"
        tree = grade_tree(leaves, weights, self._scheme, is_normalised=is_normalised)
        if self._is_released and tree.overall is not None:
            return replace(tree, overall=round(tree.overall, 4))
        return tree

    # Asking --------------------------------------------------------------------------------------

    async def _ask(
        self, session: Session, role: str, messages: Question, attempt: int
    ) -> tuple[Turn, str]:
        """Ask writer or planner; the reply is empty if there is none.

        Raises:
            UnfinishedError: the request failed.
        """
        turn = await session.ask(role, messages, step=_STEPS[role], attempt=attempt)
        # A recorded role may have fewer attempts.
        if attempt and turn.outcome == "error" and session.is_recorded(role):
            return turn, ""
        return turn, written_text(turn)

    async def _write(self, session: Session, task: Task) -> tuple[Turn, str]:
        """Ask the writer until there is a text; it is empty if there is none."""
        for attempt in range(ATTEMPTS):
            turn, text = await self._ask(session, WRITER, [("user", task.question)], attempt)
            if text:
                break
        return turn, text

    async def _plan(self, session: Session, task: Task) -> Plan:
        """Ask the planner for the weights of the content leaves."""
        planned, asked = self._content, task.instruction
        if self._is_released:
            planned = [leaf for leaf in self._content if leaf != "proper_instance"]
            asked = task.question
        names = self._texts["leaves"]
        texts = {
            "instruction": without_delimiters(asked),
            "leaves": "\n".join(f"- {leaf}（{names[leaf]}）" for leaf in planned),
            "count": str(len(planned)),
        }
        messages = [("user", _filled(self._texts["plan"], texts))]
        stated = None
        for attempt in range(ATTEMPTS):
            _, reply = await self._ask(session, PLANNER, list(messages), attempt)
            if self._is_released:
                try:
                    return released_plan(reply, self._content)
                except ValueError as error:
                    problem = f"plan: {error}: the released code loses the item"
                    raise UnfinishedError(problem) from error
            newest = stated_weights(reply, planned)
            stated = stated if newest is None else newest
            if (broken := broken_rule(newest)) is None:
                break
            again = _filled(self._texts["plan_again"], {**texts, "broken": broken})
            messages += [("assistant", reply or "……"), ("user", again)]
        return final_plan(stated, planned, attempt + 1)

    async def _rate(self, session: Session, task: Task, text: str, judge: str) -> dict[str, Rated]:
        """Have a judge rate the leaves of a text."""
        filled = {"prompt": task.question, "text": text, "reference": task.reference or ""}
        skipped = _FORMAT_RATED if task.task == "completion" else ()
        questions = {
            leaf: (rubric, filled) for leaf, rubric in self.rubrics.items() if leaf not in skipped
        }
        return await rate_texts(session, judge, questions, as_published=self._is_released)

    # Measuring -----------------------------------------------------------------------------------

    def _measures(self, task: Task, text: str, written: str) -> dict[str, float]:
        """Quantities without a judge; those of an empty text are its lengths only."""
        measured: dict[str, float] = {
            "input characters": len(task.instruction) + len(task.information),
            "output characters": len(written),
        }
        if not text:
            return measured
        measured |= paragraph_statistics(text)
        if task.task != "completion":
            formatting = (
                released_formatting_score(written if written.strip() == text else text)
                if self._is_released
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

    def _node_weights(self) -> dict[str, float]:
        given = self._options.weights
        if set(given) != (set(NODES) if self._scheme_name == "custom" else set()):
            raise ConfigError(
                f"weights is {given}: give {', '.join(NODES)} with scheme: custom, and none without"
            )
        counts = {"leaf-count": (len(self._content), 3, 1), **SCHEMES}
        return given or dict(zip(NODES, counts[self._scheme_name], strict=True))

    def _rubric(self, leaf: str) -> Rubric:
        """The rubric of a leaf; with a reference, its criterion in the frame of references."""
        rubric = load_rubric(f"tow_{leaf}")
        if self._options.reference == "none" or leaf in _ALONE:
            return rubric
        bands = self._texts["bands"].get(leaf, self._texts["bands"]["default"])
        text = self._texts["with_reference"].replace("{bands}", bands)
        return replace(rubric, text=text.strip())

    def _read_items(self) -> list[Item]:
        options = self._options
        genres = read_yaml(options.genres or _FOLDER / "genres.yaml")
        rows = read_foreign(options.instructions, INSTRUCTIONS, columns=options.columns).to_pylist()
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
                    f"genres does not know: {nearest(genre, list(genres))}, or set genres to a "
                    "file with it"
                )
            task = Task(
                row["task"],
                genres[genre],
                row["instruction"],
                row["information"] or "",
                references.get(name),
            )
            items.append(Item(name, task.question, task))
        if not items:
            raise ConfigError(
                f"{options.instructions}: no instruction of tasks {', '.join(options.tasks)}"
            )
        return items


def _filled(text: str, texts: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), text.strip())
