"""The forms in which a judge may be asked to answer, and the letters of the stories."""

from typing import Literal

Label = Literal["A", "B"]

# label: one letter and nothing else. verdict: the one line "Preferred: A". explanation: reasons,
# then that line as the last one. json_verdict: {"preferred": "A"}. json_explanation: an object with
# "explanation" first and "preferred" behind it, so that reasons come before the verdict here too.
AnswerForm = Literal["label", "verdict", "explanation", "json_verdict", "json_explanation"]
