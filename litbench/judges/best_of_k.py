"""Best-of-k judge: a model that is asked which of an item's k answers is the best.

    raters:
      gpt_4.1:
        kind: judge
        model: openai/gpt-4.1
        template: best_of_k

The answers of the pairs that share an `item_id` make one question; a pair without an item is an
item of two. The question is asked in k rotations, so that each answer stands once in each position:
k calls for an item. A hash of the texts gives the first order, so it does not depend on the label.

A pair's verdict is the answer that more rotations name; equal counts are a tie. With `samples`,
every answer to a rotation counts. A rotation without a verdict names nothing. If it could have
changed a pair's verdict, or ended in an error, the pair has its outcome (`unparsed`, `refused`,
`cut`, `error`) in place of a verdict.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from litbench.data.text import digest
from litbench.judges.judge import Judge, JudgeOptions, StoriesQuestion
from litbench.judges.session import Asked, Readable
from litbench.raters.interface import PREFERENCES, UNASKED, BlindPair, Judgement, Preference
from litbench.raters.templates.parser import LETTERS
from litbench.runs.errors import DataError


@dataclass(frozen=True)
class _Item:
    """The answers of an item in the order of the first rotation, and the rows of its pairs."""

    prompt: str
    answers: tuple[str, ...]
    rows: tuple[int, ...]

    def rotations(self) -> list[tuple[str, ...]]:
        return [self.answers[n:] + self.answers[:n] for n in range(len(self.answers))]


class BestOfKJudge(Judge):
    """A model that chooses the best of an item's answers; see the module.

    Items are judged whole, so all pairs are judged at a time.
    """

    def __init__(self, name: str, options: JudgeOptions) -> None:
        super().__init__(name, options)
        self.shard = None
        # By the number of answers: how often each position was chosen.
        self._chosen_positions: dict[int, Counter[int]] = {}

    def notes(self) -> dict[str, Any]:
        """The notes of a judge, and how often each position was chosen, by number of answers."""
        positions = {
            str(k): [counts[position] for position in range(k)]
            for k, counts in sorted(self._chosen_positions.items())
        }
        return {**super().notes(), "positions": positions}

    def judge(self, pairs: Sequence[BlindPair]) -> Sequence[Sequence[Judgement]]:
        """Judge every item in all rotations; raises the errors of `ask_readable`."""
        self._chosen_positions = {}
        asked = iter(self.ask(self._questions(pairs), self.options.samples))
        judgements: dict[int, Judgement] = {}
        for item in self._items(pairs):
            of_item = [pairs[row] for row in item.rows]
            n_asked = len(item.answers) * self.options.samples
            judged = self._judged(item, of_item, list(islice(asked, n_asked)))
            judgements |= zip(item.rows, judged, strict=True)
        return [[judgements[row]] for row in range(len(pairs))]

    def write_log(
        self, judged: Sequence[Sequence[Judgement]], chosen_first: Sequence[bool]
    ) -> None:
        """Write an inspect-ai log with a sample per item, scored by the item's first pair."""
        rows = [row for row, (judgement,) in enumerate(judged) if judgement.messages]
        super().write_log([judged[row] for row in rows], [chosen_first[row] for row in rows])

    def _items(self, pairs: Sequence[BlindPair]) -> list[_Item]:
        rows_of: dict[tuple[str, str | int], list[int]] = {}
        for row, pair in enumerate(pairs):
            name = row if pair.item is None else pair.item
            rows_of.setdefault((pair.prompt, name), []).append(row)
        items = []
        for (prompt, name), rows in rows_of.items():
            texts = {text for row in rows for text in (pairs[row].first, pairs[row].second)}
            if len(texts) > len(LETTERS):
                raise DataError(
                    f"rater {self.name}: item {name} has {len(texts)} answers, and a question "
                    f"takes at most {len(LETTERS)}: leave the item out, or use a template for "
                    "pairs, or a rubric"
                )
            answers = tuple(sorted(texts, key=lambda text: digest("order", text)))
            items.append(_Item(prompt, answers, tuple(rows)))
        return items

    def _questions(self, pairs: Sequence[BlindPair]) -> list[Readable]:
        """Questions of all items; the rotations of an item are adjacent."""
        return [
            StoriesQuestion(self.template, item.prompt, answers)
            for item in self._items(pairs)
            for answers in item.rotations()
        ]

    def _judged(
        self, item: _Item, pairs: Sequence[BlindPair], asked: Sequence[Asked]
    ) -> list[Judgement]:
        """The judgements of an item's pairs; the first has the messages, all share the cost."""
        letters = LETTERS[: len(item.answers)]
        positions = self._chosen_positions.setdefault(len(letters), Counter())
        votes: Counter[str] = Counter()
        unread: list[Preference] = []
        reasons = []
        rotations = [each for each in item.rotations() for _ in range(self.options.samples)]
        for answers, (turns, code) in zip(rotations, asked, strict=True):
            verdict, reason = self.read_turns(turns, code, letters)
            reasons.append(reason)
            if verdict in letters:
                positions[letters.index(verdict)] += 1
                votes[answers[letters.index(verdict)]] += 1
            elif verdict != "tie":
                unread.append(PREFERENCES[verdict])
        effort = self.effort([turn for turns, _ in asked for turn in turns])
        unasked = (reason for reason in reasons if reason.startswith(UNASKED))
        explanation = next(unasked, "\n\n".join(filter(None, reasons)))
        return [
            Judgement(
                _preference(votes[pair.first] - votes[pair.second], unread),
                explanation=explanation or None,
                **_share(effort, number, len(pairs)),
            )
            for number, pair in enumerate(pairs)
        ]


def _preference(lead: int, unread: Sequence[Preference]) -> Preference:
    """The preference by the lead of the first story in rotations, if the unread ones agree."""
    if unread and ("error" in unread or abs(lead) <= len(unread)):
        return "error" if "error" in unread else unread[0]
    return "tie" if not lead else "first" if lead > 0 else "second"


def _share(effort: dict[str, Any], number: int, n_pairs: int) -> dict[str, Any]:
    """A pair's share of what its item took, so that the pairs add up to the item."""
    shares: dict[str, Any] = {"messages": effort["messages"] if number == 0 else []}
    for name in ("input_tokens", "output_tokens"):
        tokens = effort[name]
        # The first pairs take the remainder.
        shares[name] = None if tokens is None else (tokens + n_pairs - 1 - number) // n_pairs
    for name in ("cost_usd", "seconds"):
        shares[name] = None if effort[name] is None else effort[name] / n_pairs
    return shares
