"""The texts shown to generative raters, as files, and how their answers are read.

    template = load_template("writerly", "json_explanation")
    question = template.render(prompt, story_a, story_b)

A template is a YAML file of one of two kinds. A family has one key, `criteria`: who the judge is
and what to go by. It stands in a frame that all families share (`frame.yaml`), and may ask for an
answer in any form (`AnswerForm`). A fixed template has its whole `text`, with `{prompt}`,
`{story_a}` and `{story_b}` once each and in this order, and `answer`, the form that it asks for.

The packaged templates fence each text with lines such as `===== STORY A ENDS =====`. Lines of a
text that begin with five or more equals signs get hyphens instead (`without_delimiters`).
"""

from litbench.templates.delimiters import without_delimiters
from litbench.templates.parser import (
    AnswerForm,
    Label,
    Reading,
    Verdict,
    has_verdict_line,
    read_answer,
    split_verdict,
)
from litbench.templates.template import (
    Template,
    assign_positions,
    family_names,
    load_template,
    packaged_names,
    template_files,
)

__all__ = [
    "AnswerForm",
    "Label",
    "Reading",
    "Template",
    "Verdict",
    "assign_positions",
    "family_names",
    "has_verdict_line",
    "load_template",
    "packaged_names",
    "read_answer",
    "split_verdict",
    "template_files",
    "without_delimiters",
]
