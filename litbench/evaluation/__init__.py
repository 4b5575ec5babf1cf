"""Evaluation: raters judge pairs, and their verdicts become a leaderboard."""
