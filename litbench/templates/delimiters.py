"""Texts that cannot pass for the delimiters which divide a question.

The packaged templates fence prompt and stories with lines that begin with five equals signs. A
story may hold such lines too, and so end itself early and bring a second story of its own.
"""

import re
import unicodedata

# Every character that compatibility folding (NFKC), which some tokenizers do first, turns into
# equals signs; and the box drawing that looks like one.
_SIGNS = "=\u207c\u208c\u2550\u2a74\u2a75\u2a76\ufe66\uff1d"
_TO_HYPHENS = str.maketrans(dict.fromkeys(_SIGNS, "-"))
# Up to the first letter or digit. The four code points are letters to Unicode and blank to the eye.
_LEAD = re.compile(r"[\W_\u115f\u1160\u3164\uffa0]*")


def without_delimiters(text: str) -> str:
    """Turn the equals signs of lines that could pass for a delimiter into hyphens.

    Such a line has five or more of them, or of what looks like them, before its first letter or
    digit. A line ends at any line break that Unicode knows. Nothing else of a text changes.
    """
    lines = text.splitlines(keepends=True)
    for place, line in enumerate(lines):
        if any(sign in line for sign in _SIGNS):
            # Some letters fold into blanks and accents.
            lead = _LEAD.match(unicodedata.normalize("NFKC", line))
            if lead and lead[0].count("=") + lead[0].count("\u2550") >= 5:
                lines[place] = line.translate(_TO_HYPHENS)
    return "".join(lines)
