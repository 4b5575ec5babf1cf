"""The page of a study in a real browser: mouse and keyboard, phone and desktop, light and dark."""

import itertools
import json
import re
from collections import Counter

import narra_script as script
import pytest
from fake_openai import FakeOpenAI
from study_folder import (
    TEXTS,
    rating_folder,
    serving,
    session_folder,
    study_pairs,
    write_study,
)

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@pytest.fixture
def study(tmp_path, pair_table):
    return write_study(
        tmp_path / "study", study_pairs(pair_table, 4), pairs_per_reader=3, asks_reason=True
    )


class Mouse:
    """Clicks."""

    def __init__(self, page):
        self.page = page

    def choose(self, selector):
        self.page.locator(selector).click()

    def press(self, name):
        with self.page.expect_navigation():
            self.page.get_by_role("button", name=name, exact=True).click()

    def write(self, text):
        self.page.locator("textarea").fill(text)


class Keyboard(Mouse):
    """Presses keys only."""

    def _go_to(self, selector):
        is_there = f"document.activeElement.matches({selector!r})"
        is_beside = f"document.activeElement.name === document.querySelector({selector!r})?.name"
        for _ in range(60):
            self.page.keyboard.press("Tab")
            # From a radio button of a group without a choice, arrows reach the others.
            if not self.page.evaluate(is_there) and self.page.evaluate(is_beside):
                self.page.keyboard.press("ArrowDown")
            if self.page.evaluate(is_there):
                return
        raise AssertionError(f"Tab does not reach {selector}")

    def choose(self, selector):
        self._go_to(selector)
        self.page.keyboard.press("Space")

    def follow(self, selector):
        self._go_to(selector)
        self.page.keyboard.press("Enter")

    def press(self, name):
        self._go_to("form button")
        assert self.page.evaluate("document.activeElement.innerText") == name
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def write(self, text):
        self._go_to("textarea")
        self.page.keyboard.type(text)


def enter(hand, url, reader, statements=("true", "false", "true", "false", "true")):
    """From the link to the first page."""
    hand.page.goto(f"{url}/?PROLIFIC_PID={reader}")
    hand.choose("input[name=agree]")
    hand.press("Continue")
    for at, is_true in enumerate(statements):
        hand.choose(f"input[name=statement{at}][value={is_true}]")
    hand.press("Continue")


def check_looks(page):
    """Nothing is wider than the screen, and every field has a name for screen readers."""
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    for role in ("radio", "checkbox", "textbox", "progressbar"):
        for field in page.get_by_role(role).all():
            assert field.evaluate("field => field.labels.length") == 1
    assert page.get_by_role("heading", level=1).count() == 1
    # The footer begins where the page does, and a warning stands apart from the card below it.
    left = [page.locator(item).bounding_box()["x"] for item in ("main", "footer")]
    assert left[0] == pytest.approx(left[1], abs=1)
    if page.locator(".stories article").count() < 2:
        return
    # Beside each other if there is room, else one below the other.
    first, second = (item.bounding_box() for item in page.locator(".stories article").all())
    assert (second["y"] == first["y"]) == (page.viewport_size["width"] > 1000)


def go_through(hand, url, reader, store, shot=None):
    enter(hand, url, reader)
    for at in range(5):
        check_looks(hand.page)
        assert f"Page {at + 1} of 5" in hand.page.inner_text(".progress")
        if shot and at == 0:
            hand.page.screenshot(path=shot, full_page=True)
        hand.choose("input[name=choice][value=second]")
        hand.write(f"reason {at}")
        hand.press("Next")
    assert TEXTS["completion_code"] in hand.page.inner_text("main")
    rows = [row for row in store.choices().to_pylist() if row["reason"]][-5:]
    assert [row["reason"] for row in rows] == [f"reason {at}" for at in range(5)]
    assert Counter(row["kind"] for row in rows) == {"pair": 3, "attention": 1, "repeat": 1}
    assert all(row["outcome"] != row["order"] for row in rows)
    assert not hand.page.console
    assert all(request.startswith(url) for request in hand.page.requests)


@pytest.mark.parametrize("size", [PHONE, DESKTOP])
def test_footer_and_warning(open_page, tmp_path, pair_table, size):
    study = write_study(
        tmp_path / "study",
        study_pairs(pair_table, 4),
        pairs_per_reader=3,
        max_words_per_minute=1.0,
    )

    def box(selector):
        return page.locator(selector).bounding_box()

    with serving(study) as (url, _):
        page = open_page(viewport=size)
        page.goto(f"{url}/?PROLIFIC_PID=r")
        assert box("footer")["x"] == pytest.approx(box("main")["x"], abs=1)
        hand = Mouse(page)
        enter(hand, url, "r")
        hand.choose("input[value=first]")
        hand.press("Next")
        assert page.title().startswith("Error: Page 1 of 5")
        warning, card, stories = box(".warn"), box("fieldset"), box(".stories")
        assert card["y"] - (warning["y"] + warning["height"]) >= 12
        assert warning["y"] - (stories["y"] + stories["height"]) >= 12


def test_keyboard_on_a_phone(study, open_page):
    with serving(study) as (url, store):
        page = open_page(viewport=PHONE, color_scheme="dark")
        go_through(Keyboard(page), url, "reader", store)


def rate_page(hand, number):
    """Rate the story of a page, as its lines ask for it."""
    page = hand.page
    check_looks(page)
    for scale in page.locator("fieldset.criterion").all():
        asked = re.search(r"choose (\d+) here", scale.inner_text())
        field = scale.locator("input").first.get_attribute("name")
        hand.choose(f'input[name={field}][value="{asked[1] if asked else number}"]')


@pytest.mark.parametrize(
    ("kind", "size", "scheme"), [(Keyboard, PHONE, "dark"), (Mouse, DESKTOP, "light")]
)
def test_ratings(open_page, tmp_path, load_program, kind, size, scheme):
    program = load_program("litbench study make")
    study = rating_folder(tmp_path / "study", program, 1, 3, asks_reason=True)
    with serving(study) as (url, store):
        page = open_page(viewport=size, color_scheme=scheme)
        hand = kind(page)
        enter(hand, url, "reader")
        for number in (2, 3, 4):
            rate_page(hand, number)
            hand.write(f"reason {number}")
            page.screenshot(path=tmp_path / f"rating{number}.png", full_page=True)
            hand.press("Next")
        # Back to the first text, to rate it anew.
        page.screenshot(path=tmp_path / "submit.png", full_page=True)
        with page.expect_navigation():
            hand.choose("nav li:first-child a") if kind is Mouse else hand.follow(
                "nav li:first-child a"
            )
        rate_page(hand, 5)
        hand.press("Save")
        hand.press("Submit")
        assert TEXTS["completion_code"] in page.inner_text("main")
        rows = store.answers().sort_by("position").to_pylist()
        assert [set(json.loads(row["ratings"]).values()) for row in rows] == [{5.0}, {3.0}, {4.0}]
        assert [row["reason"] for row in rows] == ["reason 2", "reason 3", "reason 4"]
        assert [row["is_right"] for row in rows].count(1) == 1
        assert not page.console
        assert all(request.startswith(url) for request in page.requests)


@pytest.mark.parametrize(
    ("kind", "size", "scheme"), [(Keyboard, PHONE, "dark"), (Mouse, DESKTOP, "light")]
)
def test_session(open_page, tmp_path, load_program, kind, size, scheme):
    study = session_folder(tmp_path / "study", load_program("litbench study make"))
    first = "label:nth-of-type(1) input"
    with FakeOpenAI(script.writer), serving(study) as (url, store):
        page = open_page(viewport=size, color_scheme=scheme)
        hand = kind(page)
        enter(hand, url, "reader", ("true", "false", "true", "true"))
        for step in ("need", *(f"answer_{n}" for n in range(1, 11)), "keywords", "turn_1"):
            page.locator(f'input[name=step][value="{step}"]').wait_for(state="attached")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            if step == "need":
                hand.write("I cannot put it down.")
            else:
                hand.choose(f"{first}[name={'word0' if step == 'keywords' else 'choice'}]")
            hand.press("Go on")
        page.locator('input[value="turn_2"]').wait_for(state="attached")
        assert "Turn 2 of at most 12" in page.inner_text("h1")
        page.reload()
        hand.write("I ask her why.")
        hand.press("Go on")
        page.locator('input[value="turn_3"]').wait_for(state="attached")
        assert "I ask her why." in page.inner_text("section")
        with page.expect_navigation():
            hand.choose("button[name=end]") if kind is Mouse else hand.follow("button[name=end]")
        page.locator("fieldset.criterion").first.wait_for()
        rate_page(hand, 5)
        hand.press("Next")
        hand.press("Submit")
        assert TEXTS["completion_code"] in page.inner_text("main")
        (row,) = store.answers().to_pylist()
        assert set(json.loads(row["ratings"]).values()) == {5.0}
        assert not page.console
        assert all(request.startswith(url) for request in page.requests)


def play(hand):
    """Play a session by its first choices, and end it in the second turn."""
    page = hand.page
    step = page.locator("input[name=step]")
    while True:
        step.wait_for(state="attached")
        name = step.get_attribute("value")
        if name == "turn_2":
            break
        if name == "need":
            hand.write("I cannot put it down.")
        else:
            hand.page.locator("label.option input").first.click()
        hand.press("Go on")
    with page.expect_navigation():
        hand.choose("button[name=end]")
    page.locator("fieldset.criterion").first.wait_for()


def test_group_of_sessions(open_page, tmp_path, load_program):
    study = session_folder(
        tmp_path / "study",
        load_program("litbench study make"),
        writers=dict.fromkeys(("quill", "reed", "brush"), FakeOpenAI.model),
        writers_per_reader=3,
    )
    with FakeOpenAI(script.writer), serving(study) as (url, store):
        page = open_page(viewport=DESKTOP)
        hand = Mouse(page)
        enter(hand, url, "reader", ("true", "false", "true", "true"))
        for number in (1, 3, 1):
            if number == 3:
                # The tab is closed and opened anew.
                page.goto("about:blank")
                page.goto(f"{url}/?PROLIFIC_PID=reader")
                page.locator('input[value="answer_1"]').wait_for(state="attached")
                assert page.inner_text("h1").startswith("Story 2")
            play(hand)
            assert not any(name in page.content() for name in study.plan.writers)
            rate_page(hand, number)
            hand.press("Next")
        assert page.inner_text("h1") == "Submit these ratings?"
        with page.expect_navigation():
            hand.choose("nav li:first-child a")
        page.get_by_text("Read it again").click()
        assert "It had rained since the feast" in page.inner_text("details")
        rate_page(hand, 5)
        hand.press("Save")
        hand.press("Submit")
        assert TEXTS["completion_code"] in page.inner_text("main")
        rows = store.answers().sort_by("position").to_pylist()
        assert [set(json.loads(row["ratings"]).values()) for row in rows] == [{5.0}, {3.0}, {1.0}]
        assert len({row["story_id"] for row in rows}) == 3
        assert not page.console
        assert all(request.startswith(url) for request in page.requests)


@pytest.mark.long
def test_every_way_through(study, open_page, tmp_path):
    ways = itertools.product((Mouse, Keyboard), (PHONE, DESKTOP), ("light", "dark"))
    colours = {}
    with serving(study) as (url, store):
        for at, (hand, size, scheme) in enumerate(ways):
            page = open_page(viewport=size, color_scheme=scheme, has_touch=size is PHONE)
            go_through(hand(page), url, f"reader{at}", store, tmp_path / f"{at}.png")
            colours[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (tmp_path / f"{at}.png").stat().st_size > 5_000
    assert colours["light"] != colours["dark"]


@pytest.mark.long
def test_nothing_is_lost_or_doubled(study, open_page):
    with serving(study) as (url, store):
        page = open_page(viewport=DESKTOP)
        hand = Mouse(page)
        enter(hand, url, "reader")

        def stored():
            asked = "select place, answer from choices where answered is not null order by place"
            return [tuple(row) for row in store._all(asked)]

        # Going back, and a reload, show the page that is next.
        hand.choose("input[value=first]")
        hand.press("Next")
        page.go_back()
        page.goto(f"{url}/read")
        page.reload()
        assert "Page 2 of 5" in page.inner_text(".progress")
        assert stored() == [(1, "first")]

        # Two tabs: the first answer binds.
        other = page.context.new_page()
        other.goto(f"{url}/read")
        hand.choose("input[value=second]")
        hand.press("Next")
        other.locator("input[value=first]").click()
        Mouse(other).press("Next")
        assert "Page 3 of 5" in other.inner_text(".progress")
        assert stored() == [(1, "first"), (2, "second")]

        # A double click answers once.
        hand.choose("input[value=first]")
        page.get_by_role("button", name="Next").dblclick()
        page.get_by_text("Page 4 of 5").wait_for()
        page.reload()
        assert "Page 4 of 5" in page.inner_text(".progress")
        assert stored() == [(1, "first"), (2, "second"), (3, "first")]

        # The connection is lost before the answer arrives: the reader sends it again.
        hand.choose("input[value=second]")
        page.context.set_offline(True)
        page.get_by_role("button", name="Next").click(no_wait_after=True)
        page.wait_for_timeout(500)
        assert len(stored()) == 3
        page.context.set_offline(False)
        page.goto(f"{url}/?PROLIFIC_PID=reader")
        assert "Page 4 of 5" in page.inner_text(".progress")

        # The connection is lost after it: the answer is stored, and sending it again is harmless.
        def lose(route):
            route.fetch(max_redirects=0)
            route.abort()

        page.route("**/answer", lose)
        hand.choose("input[value=second]")
        page.get_by_role("button", name="Next").click(no_wait_after=True)
        page.wait_for_timeout(500)
        page.unroute("**/answer")
        assert stored()[3:] == [(4, "second")]
        page.goto(f"{url}/read")
        assert "Page 5 of 5" in page.inner_text(".progress")
        hand.choose("input[value=first]")
        hand.press("Next")
        page.go_back()
        page.goto(f"{url}/read")
        assert TEXTS["completion_code"] in page.inner_text("main")
        assert len(stored()) == 5
