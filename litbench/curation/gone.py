"""Texts that are gone, by what stands in their place: one pattern for Python, RE2 and Java."""

# Such as "[removed]", "[deleted by user]" and "[ Removed by Reddit on account of violating the
# content policy. ]", for the whole of a text without the spaces around it. Its group tells who:
# an author deletes, others remove. No \b, which means another set of letters to each engine.
GONE = (
    r"(?is:\[\s*(deleted|removed)(?:\s*|\s+by\s+(?:user|reddit|moderators?)"
    r"(?:[^0-9a-z_].{0,200})?)\])"
)
