"""Quality estimated from votes, in place of throwing pairs away.

The votes y of story i under prompt p have the mean

    mu_i = exp(prompt_p + f(delay_i) + g(log words_i)) * author_a * lambda_i

with a level for each prompt (its audience), a smooth curve f of the time since the prompt's first
story (exposure), a smooth curve g of length, a shrunk effect of the author, and lambda_i, the
story's own part, Gamma with mean 1. Votes given lambda are Poisson, so that over stories they are
negative binomial, mean mu and variance mu + spread * mu^2 (Cameron and Trivedi, 1986, NB2). The
levels of prompts are profiled out, which for spread 0 is the conditional (multinomial) likelihood
of a prompt's votes given their sum (Hausman, Hall and Griliches, 1984). `spread` is where Pearson's
chi-squared equals its degrees of freedom (Breslow, 1984).

Of the spread only a share is quality; the rest is luck: where a story stood, who passed by. One
vote count per story cannot tell the two apart, so the share is an option. With k = 1 / (share *
spread) and w = 1 / (1 + luck * mu), the weight of a count whose variance is mu + luck * mu^2, a
story's part given its votes is

    lambda_i ~ Gamma(shape = k + w y, rate = k + w mu):

conjugate, exact where there is no luck, and near the prior where votes are few. Its logarithm is
the story's quality, with variance trigamma(shape), and of two stories the first is the better with
a probability in closed form (`better_probability`). Qualities compare
stories of one prompt only.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import ibis
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from litbench.curation import filters, splits
from litbench.curation.engine import Engine
from litbench.curation.funnel import Funnel
from litbench.curation.pair_making import Made, PairRules, make_keys
from litbench.errors import ConfigError, DataError
from litbench.records import STORIES
from litbench.text import digest, prompt_key

# Least spread: votes that vary no more than counts do would leave nothing to estimate.
_LEAST_SPREAD = 1e-4
_ROUNDS = 30


@dataclass(frozen=True)
class EstimationOptions:
    """What is taken for exposure, what for quality.

    Attributes:
        delay: fit votes against the time since the prompt's first story, and take what is found
            for exposure.
        length: the part of votes that goes with length is kept in the quality (length is then not
            looked at), or removed from it as readers' taste for length. Votes cannot tell which of
            the two it is.
        author: the part that goes with the author, shrunk towards none, is kept in the quality,
            removed from it as fame, or ignored (authors are not looked at).
        quality_share: share of the stories' own spread of votes that is quality, the rest being
            luck; above 0, up to 1.
        knots: of each curve, at equal shares of the stories; at least 2.
    """

    delay: bool = True
    length: Literal["keep", "remove"] = "remove"
    author: Literal["keep", "remove", "ignore"] = "ignore"
    quality_share: float = 0.5
    knots: int = 5

    def __post_init__(self) -> None:
        if not 0 < self.quality_share <= 1:
            raise ConfigError(
                f"quality_share is {self.quality_share}: give a share above 0 and up to 1"
            )
        if self.knots < 2:
            raise ConfigError(f"knots is {self.knots}: give at least 2")


@dataclass(frozen=True)
class VoteFacts:
    """What is known of stories beside their texts; all arrays of shape (n,).

    Attributes:
        story: unique names; they give the rows an order of their own.
        prompt: the prompt of each story, any values that can be sorted.
        votes: net votes, finite; below zero they count as none.
        n_words: length in words.
        created_utc: when posted, Unix seconds; None where times are not to be looked at.
        author: number of the author, -1 where unknown; None where authors are not known.
    """

    story: np.ndarray
    prompt: np.ndarray
    votes: np.ndarray
    n_words: np.ndarray
    created_utc: np.ndarray | None = None
    author: np.ndarray | None = None

    def __post_init__(self) -> None:
        count = len(self.story)
        for name in ("prompt", "votes", "n_words", "created_utc", "author"):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise DataError(f"{len(values)} {name} for {count} stories: give one for each")
            if name in ("votes", "n_words", "created_utc") and values is not None:
                broken = np.flatnonzero(~np.isfinite(np.asarray(values, dtype=float)))
                if len(broken):
                    raise DataError(
                        f"{name} of story {self.story[broken[0]]} is {values[broken[0]]}: leave "
                        "stories without it out"
                    )

    def take(self, rows: np.ndarray) -> "VoteFacts":
        """The facts of these rows, by place or by a mask."""
        return VoteFacts(
            self.story[rows],
            self.prompt[rows],
            self.votes[rows],
            self.n_words[rows],
            None if self.created_utc is None else self.created_utc[rows],
            None if self.author is None else self.author[rows],
        )

    def sorted(self) -> tuple["VoteFacts", np.ndarray]:
        """The facts by prompt, then story, and the places they came from."""
        order = np.lexsort((self.story, self.prompt))
        return self.take(order), order

    def log_delay(self, prompt: np.ndarray) -> np.ndarray:
        """Log of 1 + hours since the prompt's first story; float64, shape (n,).

        Args:
            prompt: number of each story's prompt, from 0.

        Raises:
            DataError: times are not known.
        """
        if self.created_utc is None:
            raise DataError("times of posting are not known: give created_utc, or delay: false")
        created = np.asarray(self.created_utc, dtype=float)
        first = np.full(prompt.max() + 1, np.inf)
        np.minimum.at(first, prompt, created)
        delay: np.ndarray = np.log1p((created - first[prompt]) / 3_600)
        return delay


@dataclass(frozen=True)
class Curve:
    """A smooth curve: a cubic spline, flat beyond its ends; a constant has none.

    Attributes:
        spline: fitted `sklearn.preprocessing.SplineTransformer`; None where nothing varies.
        coefficients: of its columns.
    """

    spline: Any
    coefficients: np.ndarray

    def at(self, values: np.ndarray) -> np.ndarray:
        """The curve's values, in log votes; shape of `values`."""
        if self.spline is None:
            return np.zeros(len(values))
        height: np.ndarray = self.spline.transform(values[:, None]) @ self.coefficients
        return height


@dataclass(frozen=True)
class VoteModel:
    """A fitted model of votes; see the module.

    Attributes:
        options: what it was fitted with.
        delay: f, of log(1 + hours).
        length: g, of log(1 + words).
        spread: stories' own variance in relative votes, authors taken out where they are looked at.
        author_spread: variance of authors' effects; 0 where they are not looked at.
        authors: effect of each author by number, as a factor.
        stories: stories it was fitted to.
        prompts: prompts, those without votes or with a single story not counted.
    """

    options: EstimationOptions
    delay: Curve
    length: Curve
    spread: float
    author_spread: float
    authors: dict[int, float]
    stories: int
    prompts: int


@dataclass(frozen=True)
class Qualities:
    """What is known of each story's quality: a Gamma distribution of its factor; shape (n,) each.

    Attributes:
        shape: of the distribution.
        rate: of the distribution.
    """

    shape: np.ndarray
    rate: np.ndarray

    @property
    def median(self) -> np.ndarray:
        """The quality that a story exceeds with a probability of one half, in log votes.

        Medians stand in the order in which `better_probability` puts stories, which means, pulled
        down by long lower tails where little is known, do not.
        """
        from scipy import special  # noqa: PLC0415

        value: np.ndarray = np.log(special.gammaincinv(self.shape, 0.5)) - np.log(self.rate)
        return value

    @property
    def error(self) -> np.ndarray:
        """Its standard error."""
        from scipy import special  # noqa: PLC0415

        value: np.ndarray = np.sqrt(special.polygamma(1, self.shape))
        return value


def better_probability(
    shape: np.ndarray, rate: np.ndarray, other_shape: np.ndarray, other_rate: np.ndarray
) -> np.ndarray:
    """P(X > Y) of independent X ~ Gamma(shape, rate) and Y ~ Gamma(other_shape, other_rate).

    rate X / (rate X + other_rate Y) is Beta(shape, other_shape), and X > Y where it exceeds
    rate / (rate + other_rate).

    Args:
        shape: of X; any shape that goes with the others'.
        rate: of X.
        other_shape: of Y.
        other_rate: of Y.
    """
    from scipy import special  # noqa: PLC0415

    value: np.ndarray = special.betaincc(shape, other_shape, rate / (rate + other_rate))
    return value


def fit_votes(facts: VoteFacts, options: EstimationOptions) -> VoteModel:
    """Fit the curves, the spread and the authors' effects to votes.

    The rows' order does not matter. scikit-learn's PoissonRegressor has no place for thousands of
    prompt levels (its Newton solver would invert them as a dense matrix) nor for the spread, so
    the few coefficients go to scipy's L-BFGS and the levels are solved for inside.

    Args:
        facts: the stories.
        options: what to fit.

    Raises:
        DataError: no prompt has two stories and a vote, or times or authors are asked for and not
            known.
    """
    facts, _ = facts.sorted()
    if options.author != "ignore" and facts.author is None:
        raise DataError("authors are not known: give author, or author: ignore")
    _, prompt, counts = np.unique(facts.prompt, return_inverse=True, return_counts=True)
    votes = np.maximum(np.asarray(facts.votes, dtype=float), 0.0)
    telling = (counts > 1) & (np.bincount(prompt, weights=votes) > 0) if len(votes) else counts > 1
    if not telling.any():
        raise DataError(
            f"none of the {len(counts)} prompts has two stories and a vote: there is nothing to "
            "compare; check prompt_id and score"
        )
    delay = facts.log_delay(prompt) if options.delay else np.zeros(len(votes))
    words = np.log1p(np.asarray(facts.n_words, dtype=float))
    rows = telling[prompt]
    facts, votes, delay, words = facts.take(rows), votes[rows], delay[rows], words[rows]
    _, prompt = np.unique(prompt[rows], return_inverse=True)
    if options.length == "keep":
        words = np.zeros(len(votes))
    splines = [_spline(values, options.knots) for values in (delay, words)]
    columns = [
        np.zeros((len(votes), 0)) if spline is None else spline.transform(values[:, None])
        for spline, values in zip(splines, (delay, words), strict=True)
    ]
    design = np.concatenate(columns, axis=1)
    # Within prompts, since their levels take the rest: coefficients of like size, and of columns
    # that never vary within a prompt nothing is learnt.
    within = np.empty_like(design)
    for place, column in enumerate(design.T):
        means = np.bincount(prompt, weights=column) / np.bincount(prompt)
        within[:, place] = column - means[prompt]
    scale = np.sqrt(np.mean(within**2, axis=0))
    scale[scale < 1e-9] = np.inf
    coefficients, spread, mu = _fit(within / scale, votes, prompt)
    coefficients = coefficients / scale
    cut = columns[0].shape[1]
    author_spread, authors = 0.0, dict[int, float]()
    if options.author != "ignore" and facts.author is not None:
        author_spread, authors = _author_effects(facts.author, votes, mu, spread)
        spread = max(spread - author_spread, _LEAST_SPREAD)
    return VoteModel(
        options,
        Curve(splines[0], coefficients[:cut]),
        Curve(splines[1], coefficients[cut:]),
        spread,
        author_spread,
        authors,
        len(votes),
        int(prompt.max()) + 1,
    )


def estimate_quality(model: VoteModel, facts: VoteFacts) -> Qualities:
    """The quality of stories given their votes, in the order of `facts`.

    Levels of prompts are those of `facts` itself: give all the stories of a prompt together. A
    story of a prompt without any vote keeps the quality of a story of which nothing is known.

    Args:
        model: see `fit_votes`; it may be of other prompts.
        facts: the stories.

    Raises:
        DataError: times or authors are looked at by the model and not known here.
    """
    options = model.options
    given = len(facts.story)
    if not given:
        return Qualities(np.zeros(0), np.zeros(0))
    if options.author != "ignore" and facts.author is None:
        raise DataError("authors are not known: give author, or fit with author: ignore")
    facts, order = facts.sorted()
    _, prompt = np.unique(facts.prompt, return_inverse=True)
    votes = np.maximum(np.asarray(facts.votes, dtype=float), 0.0)
    author = np.ones(given)
    if facts.author is not None and model.authors:
        author = np.array([model.authors.get(name, 1.0) for name in facts.author.tolist()])
    words = np.log1p(np.asarray(facts.n_words, dtype=float))
    offset = model.length.at(words) + np.log(author)
    if options.delay:
        offset = offset + model.delay.at(facts.log_delay(prompt))
    total = model.spread + model.author_spread
    level = _levels(votes, offset, prompt, total, None)
    mu = np.exp(level[prompt] + offset)
    k = 1 / (options.quality_share * model.spread)
    weight = 1 / (1 + (1 - options.quality_share) * model.spread * mu)
    shape, rate = k + weight * votes, k + weight * mu
    if options.author == "keep":
        rate = rate / author
    back = np.empty(given, dtype=np.int64)
    back[order] = np.arange(given)
    return Qualities(shape[back], rate[back])


# Stories and pairs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class EstimatedStories:
    """Stories with their estimates, by prompt, then story.

    Attributes:
        model: what the estimates are made with.
        table: `story_id`, `prompt_id`, `score`, `quality`, `quality_error`, and the distribution's
            `quality_shape` and `quality_rate`; only stories that pass the rules.
    """

    model: VoteModel
    table: pa.Table


def check_rules(rules: PairRules) -> None:
    """Check the rules of pairs by estimated quality.

    Raises:
        ConfigError: a rule that compares votes.
    """
    if rules.min_gap is not None:
        raise ConfigError(
            f"min_gap is {rules.min_gap}: it compares votes, and these pairs go by estimated "
            "quality: leave it null, and set min_probability instead"
        )


def estimate_stories(
    engine: Engine,
    stories: Any,
    rules: PairRules,
    options: EstimationOptions,
    *,
    fit_split: str | None = None,
    fit_stories: int | None = None,
) -> EstimatedStories:
    """Fit the model to the stories that pass the rules, and estimate the quality of all of them.

    Held in memory: about 100 bytes a story and its id, no texts.

    Args:
        engine: reads the stories.
        stories: Ibis table by the schema STORIES.
        rules: those of single stories and of splits are looked at.
        options: what to fit.
        fit_split: fit to the stories of this split alone; all when None.
        fit_stories: fit to at most so many stories, of prompts drawn by a hash; all when None.

    Raises:
        ConfigError: `fit_split` names no split.
        DataError: nothing to fit to.
    """
    passing = filters.removed_by(
        filters.story_rules(
            stories,
            drop_deleted=rules.drop_deleted,
            drop_bots=rules.drop_bots,
            drop_talk=rules.drop_talk,
            min_score_age_hours=rules.min_score_age_hours,
            needs_score=True,
            needs_time=options.delay or rules.chosen_later,
            min_score=rules.min_score,
            max_tokens=rules.max_tokens,
            min_words=rules.min_words,
        )
    )
    columns = ("story_id", "prompt_id", "prompt", "score", "created_utc", "n_words", "author")
    marked = stories.select(*columns, removed_by=passing)
    kept = marked.filter(marked.removed_by.isnull()).drop("removed_by")
    names = ["story_id", "score", "created_utc", "n_words"]
    codes = kept.select(
        "prompt_id", *names, "author",
        # Numbers take less memory than names; -1 where the author is unknown.
        author_number=ibis.ifelse(
            kept.author.isnull(), -1, ibis.dense_rank().over(order_by=kept.author)
        ),
    )  # fmt: skip
    codes = codes.order_by("prompt_id", "story_id").drop("author")
    batches = list(engine.batches(codes))
    if not batches or not sum(batch.num_rows for batch in batches):
        raise DataError(
            "no story passes the rules: loosen min_score, min_words or max_tokens, and where no "
            "time of posting is known set estimation.delay to false"
        )
    table = pa.Table.from_batches(batches)
    prompt_id = table["prompt_id"].combine_chunks().dictionary_encode()
    facts = VoteFacts(
        np.arange(table.num_rows),
        prompt_id.indices.to_numpy(),
        table["score"].to_numpy(),
        table["n_words"].to_numpy(),
        table["created_utc"].to_numpy() if options.delay else None,
        table["author_number"].to_numpy() if options.author != "ignore" else None,
    )
    ids = prompt_id.dictionary.to_pylist()
    fitted = np.ones(table.num_rows, dtype=bool)
    if fit_split is not None:
        fitted = _in_split(engine, stories, rules, fit_split, table)
    if fit_stories is not None and fitted.sum() > fit_stories:
        fitted &= _drawn(ids, facts.prompt, fitted, rules.seed, fit_stories)
    model = fit_votes(facts.take(fitted), options)
    qualities = estimate_quality(model, facts)
    columns_out = {
        **{name: table[name] for name in ("story_id", "prompt_id", "score")},
        "quality": pa.array(qualities.median),
        "quality_error": pa.array(qualities.error),
        "quality_shape": pa.array(qualities.shape),
        "quality_rate": pa.array(qualities.rate),
    }
    return EstimatedStories(model, pa.table(columns_out))


def _in_split(
    engine: Engine, stories: Any, rules: PairRules, split: str, table: pa.Table
) -> np.ndarray:
    """Which rows of `table` are of a split, as `make_keys` splits; shape (n,)."""
    texts: dict[str, str] = {}
    for batch in engine.batches(stories.group_by("prompt_id").agg(prompt=stories.prompt.min())):
        ids, prompts = batch["prompt_id"].to_pylist(), batch["prompt"].to_pylist()
        texts.update(zip(ids, prompts, strict=True))
    if rules.test_from is None:
        if split not in rules.splits:
            raise ConfigError(
                f"fit_split is '{split}', and the splits are {', '.join(rules.splits)}: give one "
                "of these, or null for all"
            )
        own = splits.split_prompts(list(texts.values()), rules.splits, rules.seed)
        inside = [prompt_id for prompt_id, text in texts.items() if own[text] == split]
        column = "prompt_id"
    else:
        if split not in ("train", "test"):
            raise ConfigError(f"fit_split is '{split}': with test_from give train or test")
        keys = [prompt_key(text) for text in texts.values()]
        keyed = engine.put(pa.table({"prompt_id": list(texts), "prompt_key": keys}))
        given = stories.select("story_id", "prompt_id", "created_utc").join(keyed, "prompt_id")
        dated = splits.date_split(given, test_from=rules.test_from, straddling=rules.straddling)
        wanted = dated.filter(dated.split == split).select("story_id")
        inside = [name for batch in engine.batches(wanted) for name in batch[0].to_pylist()]
        column = "story_id"
    names = pa.array(inside, table.schema.field(column).type)
    found: np.ndarray = pc.is_in(table[column], value_set=names).to_numpy()
    return found


def _drawn(
    prompts: list[str], prompt: np.ndarray, among: np.ndarray, seed: int, most: int
) -> np.ndarray:
    """Which stories are of the first prompts, in seeded order, that hold at most `most`."""
    draws = [digest("estimate", seed, name) for name in prompts]
    order = np.array(sorted(range(len(draws)), key=draws.__getitem__))
    sizes = np.bincount(prompt[among], minlength=len(prompts))[order]
    chosen = np.zeros(len(prompts), dtype=bool)
    # At least one.
    chosen[order[np.cumsum(sizes) <= max(most, sizes[sizes > 0][0])]] = True
    inside: np.ndarray = chosen[prompt]
    return inside


def make_estimated_keys(
    engine: Engine,
    stories: Any,
    estimated: EstimatedStories,
    rules: PairRules,
    *,
    funnel: Funnel | None = None,
    where: str = "stories",
) -> Made:
    """Pair the stories of a prompt, the one of higher estimated quality chosen.

    All else goes as in `make_keys`: duplicates, splits, caps and, where the rules ask for them,
    time and symmetry. The scores of the keys are the qualities; `with_confidence` puts the votes
    back.
    """
    estimates = estimated.table.select(["story_id", "quality"])
    known = engine.put(estimates.rename_columns(["estimated_story_id", "estimated_quality"]))
    # A story without an estimate is one without a score, and so goes. The stories' own extra
    # columns are left behind: simulated ones have the truth among them.
    joined = stories.left_join(known, stories.story_id == known.estimated_story_id)
    columns = [column.name for column in STORIES.columns if column.name != "score"]
    if "is_bot" in stories.columns:
        columns.append("is_bot")
    # `make_keys` removes those outside the limits of length itself, and counts them as such.
    outside = ibis.literal(False)
    if rules.max_tokens is not None:
        outside = outside | (joined.n_tokens > rules.max_tokens).fill_null(False)
    if rules.min_words is not None:
        outside = outside | (joined.n_words < rules.min_words)
    by_length = ibis.ifelse(outside & joined.score.notnull(), 0.0, ibis.null("float64"))
    ranked = joined.select(*columns, score=joined.estimated_quality.fill_null(by_length))
    # What looks at votes was applied before the estimate.
    without_votes = {**vars(rules), "min_score": None, "min_score_age_hours": None}
    own = PairRules(**{name: without_votes[name] for name in PairRules.__dataclass_fields__})
    return make_keys(engine, ranked, own, funnel=funnel, where=where)


def with_confidence(
    engine: Engine, pairs: Any, estimated: EstimatedStories, *, margins: bool = False
) -> Iterator[pa.RecordBatch]:
    """Add to pairs how sure it is that the chosen story is the better, in the order of pair_id.

    Args:
        engine: runs the join.
        pairs: Ibis table with `pair_id`, both story_ids and scores, such as `Made.after`.
        estimated: the stories' estimates.
        margins: fill `margin` with the difference of the qualities.

    Yields:
        The pairs with the votes as scores, `p_chosen` (probability that chosen is the better),
        `weight` = 2 p_chosen - 1 and `margin`. Weight is what a pair's label says in expectation: 1
        where it is sure, 0 for a coin's toss.
    """
    parts = ["story_id", "score", "quality", "quality_shape", "quality_rate"]
    known = engine.put(estimated.table.select(parts))
    joined = pairs.drop(
        *[n for n in ("margin", "weight", "p_chosen") if n in pairs.columns],
        "chosen_score", "rejected_score",
    )  # fmt: skip
    for side in ("chosen", "rejected"):
        named = known.select(**{f"{side}_{name}": known[name] for name in parts})
        joined = joined.join(named, f"{side}_story_id")
    for batch in engine.batches(joined.order_by("pair_id")):
        numbers = {
            f"{side}_{name}": batch[f"{side}_{name}"].to_numpy()
            for side in ("chosen", "rejected")
            for name in parts[2:]
        }
        p = better_probability(
            numbers["chosen_quality_shape"], numbers["chosen_quality_rate"],
            numbers["rejected_quality_shape"], numbers["rejected_quality_rate"],
        )  # fmt: skip
        lead = numbers["chosen_quality"] - numbers["rejected_quality"]
        table = pa.Table.from_batches([batch]).drop_columns(list(numbers))
        table = table.append_column("p_chosen", pa.array(p))
        table = table.append_column("weight", pa.array(2 * p - 1))
        margin = pa.array(lead) if margins else pa.nulls(len(p), pa.float64())
        yield from table.append_column("margin", margin).combine_chunks().to_batches()


def more_probable(batches: Iterable[pa.RecordBatch], least: float) -> Iterator[pa.RecordBatch]:
    """The pairs whose `p_chosen` is above `least`."""
    for batch in batches:
        yield batch.filter(pc.greater(batch["p_chosen"], least))


# The fit ----------------------------------------------------------------------------------------


def _spline(values: np.ndarray, knots: int) -> Any:
    """Columns of a cubic spline with knots at equal shares of the values; None for a constant."""
    from sklearn.preprocessing import SplineTransformer  # noqa: PLC0415

    places = np.unique(np.quantile(values, np.linspace(0, 1, knots)))
    if len(places) < 2:
        return None
    spline = SplineTransformer(
        degree=min(3, len(places) - 1), knots=places[:, None], include_bias=False,
        extrapolation="constant",
    )  # fmt: skip
    return spline.fit(values[:, None])


def _levels(
    votes: np.ndarray,
    offset: np.ndarray,
    prompt: np.ndarray,
    spread: float,
    start: np.ndarray | None,
) -> np.ndarray:
    """The likeliest level of each prompt, -inf for one without votes; shape (prompts,).

    Newton's method on a concave likelihood of one number per prompt, its steps held to 1.
    """
    total = np.bincount(prompt, weights=votes)
    with np.errstate(divide="ignore"):
        level = np.log(total / np.bincount(prompt, weights=np.exp(offset)))
    if start is not None:
        level = np.where(np.isfinite(level), start, level)
    going = np.isfinite(level)
    for _ in range(100):
        mu = np.exp(level[prompt] + offset)
        damped = 1 / (1 + spread * mu)
        slope = np.bincount(prompt, weights=(votes - mu) * damped)
        bend = np.bincount(prompt, weights=mu * (1 + spread * votes) * damped**2)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(going, np.clip(slope / bend, -1, 1), 0.0)
        level = level + step
        # Each prompt stops by itself, so that no other changes its last digits.
        going &= np.abs(step) >= 1e-10
        if not going.any():
            break
    return level


def _fit(
    design: np.ndarray, votes: np.ndarray, prompt: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray]:
    """Coefficients, spread and means; the spread and the rest in turns until neither moves."""
    from scipy import optimize  # noqa: PLC0415

    spread, coefficients = 0.5, np.zeros(design.shape[1])
    level: np.ndarray | None = None
    mu = votes
    freedom = len(votes) - (prompt.max() + 1) - design.shape[1]

    def loss(trial: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal level
        offset = design @ trial
        level = _levels(votes, offset, prompt, spread, level)
        eta = level[prompt] + offset
        mean = np.exp(eta)
        damped = np.log1p(spread * mean) * (votes + 1 / spread)
        # The least of penalties, so that columns of which nothing can be learnt stay at zero.
        value = float(np.sum(damped - votes * eta)) + 0.5 * float(trial @ trial)
        slope = design.T @ ((mean - votes) / (1 + spread * mean)) + trial
        return value / len(votes), slope / len(votes)

    for _ in range(_ROUNDS):
        if design.shape[1]:
            found = optimize.minimize(
                loss, coefficients, jac=True, method="L-BFGS-B",
                options={"gtol": 1e-8, "ftol": 1e-14, "maxiter": 500},
            )  # fmt: skip
            coefficients = found.x
        offset = design @ coefficients
        level = _levels(votes, offset, prompt, spread, level)
        mu = np.exp(level[prompt] + offset)
        before, spread = spread, _spread(votes, mu, max(freedom, 1))
        if abs(math.log(spread / before)) < 1e-4:
            break
    return coefficients, spread, mu


def _spread(votes: np.ndarray, mu: np.ndarray, freedom: int) -> float:
    """Where Pearson's chi-squared of votes around their means equals its degrees of freedom."""
    from scipy import optimize  # noqa: PLC0415

    squares = (votes - mu) ** 2

    def beyond(log_spread: float) -> float:
        return float(np.sum(squares / (mu + math.exp(log_spread) * mu**2))) - freedom

    low, high = math.log(_LEAST_SPREAD), math.log(1e4)
    return math.exp(low if beyond(low) <= 0 else optimize.brentq(beyond, low, high))


def _author_effects(
    authors: np.ndarray, votes: np.ndarray, mu: np.ndarray, spread: float
) -> tuple[float, dict[int, float]]:
    """Variance of authors' effects, and each effect as a factor shrunk towards 1.

    The variance is the weighted mean product of what two stories of one author got beyond their
    means, relative to these; a factor is that of credibility theory (Buehlmann and Straub, 1970),
    (k + sum of w y) / (k + sum of w mu) with k = 1 / variance and w = 1 / (1 + spread * mu).
    """
    names, place = np.unique(authors, return_inverse=True)
    weight = mu / (1 + spread * mu)
    weight = np.where(authors < 0, 0.0, weight)
    beyond = weight * (votes / mu - 1)
    sums, weights = np.bincount(place, weights=beyond), np.bincount(place, weights=weight)
    pairs = float(np.sum(weights**2) - np.sum(weight**2))
    products = float(np.sum(sums**2) - np.sum(beyond**2))
    variance = products / pairs if pairs > 1e-9 else 0.0
    if variance <= 0:
        return 0.0, {}
    # Never more than there is to share out.
    variance = min(variance, 0.9 * spread)
    factors = (1 / variance + weights + sums) / (1 / variance + weights)
    known = names >= 0
    return variance, dict(zip(names[known].tolist(), factors[known].tolist(), strict=True))
