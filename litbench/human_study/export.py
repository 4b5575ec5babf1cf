"""The choices of a study as ratings of stories, in the form that import_ratings.py reads."""

import duckdb
import pyarrow as pa

_SIDES = """
create temp view sides as
select pair_id, prompt_id, prompt, 'chosen' as side, chosen_story_id as story_id, chosen as text
from pairs union all
select pair_id, prompt_id, prompt, 'rejected', rejected_story_id, rejected from pairs
"""
_STORIES = """
select story_id, any_value(prompt_id) as prompt_id, any_value(prompt) as prompt,
    any_value(text) as text
from sides group by story_id order by story_id
"""
_RATINGS = """
select story_id, reader as rater, avg((outcome = side)::int) as rating,
    string_agg(reason, chr(10) || chr(10) order by place) as explanation
from choices join sides using (pair_id) where kind = 'pair' group by all order by all
"""


def stories_and_ratings(choices: pa.Table, pairs: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The stories of a study, and how often each reader chose each story.

    Args:
        choices: table with the schema CHOICES; checks and repeated pairs are left out.
        pairs: table with the schema PAIRS.

    Returns:
        Stories with `story_id`, `prompt_id`, `prompt` and `text`, and ratings with `story_id`,
        `rater`, `rating` (0 to 1) and `explanation` (the reasons).
    """
    with duckdb.connect() as database:
        database.register("choices", choices)
        database.register("pairs", pairs)
        database.execute(_SIDES)
        return database.sql(_STORIES).to_arrow_table(), database.sql(_RATINGS).to_arrow_table()
