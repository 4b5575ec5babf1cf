"""The server's page in a real browser."""

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from test_server import longer, serving

TOKEN = "a-long-token"  # noqa: S105
SIZES = {"desktop": {"width": 1200, "height": 800}, "phone": {"width": 360, "height": 740}}
HOSTILE = "</textarea><script>document.title = 'changed'</script> one two"


def fill(page, *stories):
    page.fill("#prompt", "[WP] A door.")
    for number, story in enumerate(stories, 1):
        if number > 2:
            page.click("#add")
        page.fill(f"#story{number}", story)
    page.click("text=Compare >> nth=-1")


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_stories_are_ordered_by_reward(open_page, size):
    with serving(longer()) as served:
        page = open_page(viewport=size)
        page.goto(f"http://127.0.0.1:{served.port}/")
        fill(page, "one two", "one two three", HOSTILE)
        page.locator("output.first").wait_for()
        shown = page.locator("output").all_inner_texts()
        ranks = [text.partition(":")[0] for text in shown]
        words = [2, 3, len(HOSTILE.split())]
        assert ranks == [f"{1 + sum(n > word for n in words)} of 3" for word in words]
        assert page.title() == "Compare stories"
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert {url.partition("//")[2].partition("/")[0] for url in page.requests} == {
            f"127.0.0.1:{served.port}"
        }
        assert not page.console, "nothing broke the content security policy"


@pytest.mark.usefixtures("braces_are_code")
def test_a_text_that_is_no_prose_is_not_ranked(open_page):
    with serving(longer()) as served:
        page = open_page()
        page.goto(f"http://127.0.0.1:{served.port}/")
        fill(page, "one two { three", "one two")
        page.locator("output.first").wait_for()
        code, story = page.locator("output").all_inner_texts()
    assert code.startswith("not ranked: reward 3.000. Not prose (code; braces)")
    assert story.startswith("1 of 1: reward 2.000")


def test_the_token_is_asked_for(open_page):
    with serving(longer(), token=TOKEN) as served:
        page = open_page()
        page.goto(f"http://127.0.0.1:{served.port}/")
        fill(page, "one two", "one")
        page.locator("text=Authorization: Bearer TOKEN").wait_for()
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.locator("output.first").wait_for()
        assert page.locator("output").all_inner_texts()[0].startswith("1 of 2")
