"""Accounts that post by themselves, by their names: one pattern for Python, RE2 and Java alike."""

# Known bots whose names say so to people only: in lower case throughout, or without "bot".
_KNOWN = (
    "automoderator|autotldr|commonmisspellingbot|gifreversingbot|haikusbot|imguralbumbot|"
    "linkfixerbot|metric_units|remindmebot|repostsleuthbot|savethevideo|savevideo|sneakpeekbot|"
    "stabbot|totesmessenger|updatemebot|vredditdownloader|wikisummarizerbot|wikitextbot|"
    "writingpromptsrobot|youtubefactsbot"
)
# Else a set-off or capitalised "Bot" at the end: people are called Talbot and Abbot.
BOT_NAMES = rf"^(?i:{_KNOWN})$|(^|[-_])(?i:bot)\d*$|[A-Za-z0-9]Bot\d*$"
