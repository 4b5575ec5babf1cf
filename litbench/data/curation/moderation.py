"""Patterns for deleted texts and bot accounts that behave alike in Python, RE2 and Java."""

# The notice that replaces a text, such as "[removed]", "[deleted by user]" and "[ Removed by Reddit
# on account of violating the content policy. ]". The group tells who acted: authors delete,
# moderators and Reddit remove. No \b: each engine defines word characters differently.
GONE = (
    r"(?is:\[\s*(deleted|removed)(?:\s*|\s+by\s+(?:user|reddit|moderators?)"
    r"(?:[^0-9a-z_].{0,200})?)\])"
)
# Known bots by name; otherwise a name that ends in a separated or capitalised "Bot", since people
# are called Talbot and Abbot.
BOT_NAMES = (
    r"^(?i:automoderator|autotldr|commonmisspellingbot|gifreversingbot|haikusbot|imguralbumbot|"
    r"linkfixerbot|metric_units|remindmebot|repostsleuthbot|savethevideo|savevideo|sneakpeekbot|"
    r"stabbot|totesmessenger|updatemebot|vredditdownloader|wikisummarizerbot|wikitextbot|"
    r"youtubefactsbot|writingpromptsrobot)$|(^|[-_])(?i:bot)\d*$|[A-Za-z0-9]Bot\d*$"
)
