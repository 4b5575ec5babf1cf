"""Texts that cannot pass for the markers which divide a question.

The packaged templates fence prompt and stories with lines that begin with five equals signs. A
story may hold such lines too, and so end itself early and bring a second story of its own. The
markers stay as they are, since models that count tokens need the same ones around every text; the
lines of the texts give way.
"""

import re

# What compatibility folding (NFKC), which some tokenizers do first, makes an equals sign; and the
# box drawing that looks like one.
_SIGNS = "=\u207c\u208c\u2550\ufe66\uff1d"
_TO_HYPHENS = str.maketrans(dict.fromkeys(_SIGNS, "-"))
_LEAST = 5
# Up to the first letter or digit. The four code points are letters to Unicode and blanks to the
# eye.
_LEAD = re.compile(r"[\W_\u115f\u1160\u3164\uffa0]*")


def without_markers(text: str) -> str:
    """Turn the equals signs of lines that could pass for a marker into hyphens.

    Such a line has five or more of them, or of what looks like them, before its first letter or
    digit, whatever blanks, invisible characters or punctuation stand around them. A line ends at
    any line break that Unicode knows, a lone carriage return among them. So a scene break stays a
    scene break, and nothing else of a text changes.
    """
    if not any(sign in text for sign in _SIGNS):
        return text
    return "".join(map(_without_marker, text.splitlines(keepends=True)))


def _without_marker(line: str) -> str:
    lead = _LEAD.match(line)
    assert lead is not None, "the expression matches nothing too"
    if sum(map(lead[0].count, _SIGNS)) < _LEAST:
        return line
    return line.translate(_TO_HYPHENS)
