"""Texts that cannot pass for the delimiters which divide a question.

The packaged templates fence prompt and stories with lines that begin with five equals signs. A
story may hold such lines too, and so end itself early and bring a second story of its own. The
delimiters stay as they are, since models that count tokens need the same ones around every text;
the lines of the texts give way.
"""

import re
import unicodedata

# Every character that compatibility folding (NFKC), which some tokenizers do first, turns into
# equals signs; and the box drawing that looks like one.
_SIGNS = "=\u207c\u208c\u2550\u2a74\u2a75\u2a76\ufe66\uff1d"
_TO_HYPHENS = str.maketrans(dict.fromkeys(_SIGNS, "-"))
_LEAST = 5
# Up to the first letter or digit. The four code points are letters to Unicode and blank to the eye.
_LEAD = re.compile(r"[\W_\u115f\u1160\u3164\uffa0]*")


def without_delimiters(text: str) -> str:
    """Turn the equals signs of lines that could pass for a delimiter into hyphens.

    Such a line has five or more of them, or of what looks like them, before its first letter or
    digit, whatever blanks, invisible characters or punctuation stand around them. A line ends at
    any line break that Unicode knows. So a scene break stays a scene break, and nothing else of a
    text changes.
    """
    if not any(sign in text for sign in _SIGNS):
        return text
    return "".join(map(_without_delimiter, text.splitlines(keepends=True)))


def _without_delimiter(line: str) -> str:
    # Some letters fold into blanks and accents.
    lead = _LEAD.match(unicodedata.normalize("NFKC", line))
    assert lead is not None, "the expression matches nothing too"
    signs = lead[0].count("=") + lead[0].count("\u2550")
    return line.translate(_TO_HYPHENS) if signs >= _LEAST else line
