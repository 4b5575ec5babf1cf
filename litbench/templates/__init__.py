"""The texts shown to generative raters, as files, and how their answers are read.

    template = load_template("verdict_label")
    question = template.render(prompt, story_a, story_b)

A template is a YAML file with two keys: `text`, which holds `{prompt}`, `{story_a}` and
`{story_b}` once each and in this order, and `answer`, which says what is asked for: `label` (the
single letter A or B) or `explanation` (an explanation, then a last line `Preferred: A`). The fixed
text before the stories comes first and the form of the answer last, so that questions about one
prompt begin alike and a provider's prompt cache can keep that beginning.

The packaged templates fence each text with lines such as `===== STORY A ENDS =====`. The texts of
authors may hold such lines too, so those of their lines that begin with five or more equals signs
go in with hyphens in their place (`without_markers`); nothing else of a text changes, and a
placeholder inside one stays text. Templates of yours are guarded when their markers begin likewise.
"""

from litbench.templates.answers import Label, has_verdict_line, read_label, split_verdict
from litbench.templates.dealing import deal_sides
from litbench.templates.markers import without_markers
from litbench.templates.template import Template, load_template, packaged_names

__all__ = [
    "Label",
    "Template",
    "deal_sides",
    "has_verdict_line",
    "load_template",
    "packaged_names",
    "read_label",
    "split_verdict",
    "without_markers",
]
