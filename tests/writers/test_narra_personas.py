"""Persona cards are read whole, or refused by name."""

import pytest

from litbench.runs.errors import ConfigError
from litbench.writers.narra.personas import card_text, load_personas

CARD = """
id: porter
display_name: "Ana, porter"
demographics: {age: 50}
emotional_need: >
  I carry things.
conversation_style: {verbosity: short, emoji_use: rare, uses_filler_words: false}
goals: ["to rest"]
end_condition: {type: turns_or_satisfaction, max_user_turns: 9}
clarifying_question_style: >
  Picks the first.
"""


def test_eight_cards_of_our_own():
    personas = load_personas()
    assert len(personas) == 8
    assert len({card_text(persona) for persona in personas.values()}) == 8
    for persona in personas.values():
        assert 10 <= persona["end_condition"]["max_user_turns"] <= 16
        assert len(persona["emotional_need"].split(".")) > 3
        assert set(persona["demographics"]) == {
            "age",
            "gender",
            "occupation",
            "cultural_background",
        }
        assert set(persona["conversation_style"]) == {"verbosity", "formality", "notes"}


def test_published_form(tmp_path):
    (tmp_path / "01_porter.yaml").write_text(CARD, encoding="utf-8")
    porter = load_personas(tmp_path)["porter"]
    assert porter["end_condition"]["max_user_turns"] == 9
    assert porter["conversation_style"]["uses_filler_words"] is False
    assert "I carry things." in card_text(porter)
    changed = CARD.replace("porter\n", "porter \n").replace("to rest", "to rest well")
    (tmp_path / "01_porter.yaml").write_text(changed, encoding="utf-8")
    assert card_text(load_personas(tmp_path)["porter"]) != card_text(porter)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("max_user_turns: 9", ""), "key 'end_condition.max_user_turns' is missing"),
        (("max_user_turns: 9", "max_user_turns: 0"), "end_condition.max_user_turns"),
        (("goals:", "goal:"), "unknown key 'goal': did you mean 'goals'"),
        (("I carry things.", ""), "key 'emotional_need' is '': "),
        (("id: porter", "id: ' '"), "key 'id' is ' ': "),
        (("type: turns_or_satisfaction, ", "kind: x, "), "unknown key 'end_condition.kind'"),
    ],
)
def test_a_bad_card_is_refused_by_name(tmp_path, change, message):
    (tmp_path / "01_porter.yaml").write_text(CARD.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_personas(tmp_path)
    assert "01_porter.yaml" in str(error.value)
    assert message in str(error.value)


def test_no_card_and_the_same_id_twice(tmp_path):
    with pytest.raises(ConfigError, match="has no persona card"):
        load_personas(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(CARD, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"b\.yaml: id 'porter'"):
        load_personas(tmp_path)
