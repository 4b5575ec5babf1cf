"""Question templates for generative raters, and the parser for their answers.

    from litbench.raters.templates.template import load_template

    template = load_template("writerly", "json_explanation")
    question = template.render(prompt, story_a, story_b)

A template is a YAML file of one of two kinds. A family has one key, `criteria`: the judge's role
and the criteria to apply. They are inserted into a frame shared by all families (`frame.yaml`),
which supports every answer form (`AnswerForm`). A fixed template has two keys: the complete
`text`, with `{story_a}`, `{story_b}` and, unless the prompt is not shown, `{prompt}`, and `answer`,
the answer form that this text requests.

The packaged templates enclose each text in lines such as `===== STORY A ENDS =====`. In lines of a
prompt or story that begin with five or more equals signs, they are replaced by hyphens
(`without_delimiters`).
"""
