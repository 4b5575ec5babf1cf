"""Texts that are gone and accounts that are bots: patterns for Python, RE2 and Java alike."""

# What stands in place of a text, such as "[removed]", "[deleted by user]" and "[ Removed by Reddit
# on account of violating the content policy. ]". Its group tells who: an author deletes, others
# remove. No \b, which means another set of letters to each engine.
GONE = (
    r"(?is:\[\s*(deleted|removed)(?:\s*|\s+by\s+(?:user|reddit|moderators?)"
    r"(?:[^0-9a-z_].{0,200})?)\])"
)
# Names of bots that do not say so; else a set-off or capitalised "Bot" at the end, since people
# are called Talbot and Abbot.
BOT_NAMES = (
    r"^(?i:automoderator|autotldr|commonmisspellingbot|gifreversingbot|haikusbot|imguralbumbot|"
    r"linkfixerbot|metric_units|remindmebot|repostsleuthbot|savethevideo|savevideo|sneakpeekbot|"
    r"stabbot|totesmessenger|updatemebot|vredditdownloader|wikisummarizerbot|wikitextbot|"
    r"youtubefactsbot|writingpromptsrobot)$|(^|[-_])(?i:bot)\d*$|[A-Za-z0-9]Bot\d*$"
)
