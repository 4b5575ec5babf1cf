"""Escape lines of a text that look like the delimiters of a question.

The packaged templates enclose prompt and stories in lines that begin with five equals signs. With
such a line, a story could end early and insert a second story.
"""

import re
import unicodedata

# All characters that compatibility normalisation (NFKC), which some tokenizers apply, turns into
# equals signs, and the box-drawing character that looks like one.
_SIGNS = "=\u207c\u208c\u2550\u2a74\u2a75\u2a76\ufe66\uff1d"
_TO_HYPHENS = str.maketrans(dict.fromkeys(_SIGNS, "-"))
# Everything before the first letter or digit. Unicode has the four code points as letters, but they
# are invisible.
_PREFIX = re.compile(r"[\W_\u115f\u1160\u3164\uffa0]*")


def without_delimiters(text: str) -> str:
    """Replace equals signs by hyphens in lines that look like a delimiter.

    These are lines with five or more equals signs, or similar characters, before the first letter
    or digit. Lines end at any Unicode line break. The rest of the text is unchanged.
    """
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if any(sign in line for sign in _SIGNS):
            # Normalised first: NFKC turns some letters into spaces and accents.
            prefix = _PREFIX.match(unicodedata.normalize("NFKC", line))
            if prefix and prefix[0].count("=") + prefix[0].count("\u2550") >= 5:
                lines[index] = line.translate(_TO_HYPHENS)
    return "".join(lines)
