"""Dumps of Reddit as Pushshift writes them."""

import json
import random

from litbench.data.formats import zstd

WHEN = 1_600_000_000


def write_dump(path, rows):
    """Write rows as JSON lines, compressed if the name ends in .zst; bytes are written as is."""
    content = b"".join(
        (row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows
    )
    if path.suffix == ".zst":
        content = zstd().compress(content, 3)
    path.write_bytes(content)
    return path


def pushshift_post(key, title, **more):
    return {
        "author": "asker",
        "created_utc": WHEN,
        "domain": "self.WritingPrompts",
        "id": key,
        "is_self": True,
        "link_flair_text": "Writing Prompt",
        "num_comments": 3,
        "over_18": False,
        "permalink": f"/r/WritingPrompts/comments/{key}/",
        "retrieved_on": WHEN + 10**7,
        "score": 40,
        "selftext": "",
        "subreddit": "WritingPrompts",
        "title": title,
    } | more


def pushshift_comment(key, link, **more):
    return {
        "author": f"author of {key}",
        "body": f"It began with {key}, and went on.",
        "controversiality": 0,
        "created_utc": str(WHEN + 3_600),
        "edited": False,
        "gilded": 0,
        "id": key,
        "link_id": f"t3_{link}",
        "parent_id": f"t3_{link}",
        "retrieved_on": WHEN + 10**7,
        "score": 12,
        "stickied": False,
        "subreddit": "WritingPrompts",
        "subreddit_id": "t5_2s3nb",
    } | more


def three_months(folder, stories, words=8):
    """Write three files of submissions and of comments, with the same content in any folder."""
    folder.mkdir()
    source = random.Random(1)
    submissions, comments = [], []
    for month in range(3):
        keys = [f"p{month}{n}" for n in range(20)]
        rows = [pushshift_post(key, f"[WP] Prompt {key}") for key in keys]
        submissions.append(write_dump(folder / f"RS_{month}.zst", rows))
        rows = []
        for n in range(stories):
            body = " ".join(source.choices(["river", "moth", "ladder", "copper"], k=words))
            rows.append(pushshift_comment(f"c{month}{n}", source.choice(keys), body=body))
        comments.append(write_dump(folder / f"RC_{month}.zst", [*rows, b"broken"]))
    return submissions, comments
