"""What of a model's folder is pushed, what is refused, and that it loads by its name."""

import json

import pytest
from fake_hub import TOKEN, FakeHub
from tolerance import assert_same

from litbench.data.records import prompt_keys
from litbench.data.tables import write_table
from litbench.data.text import prompt_key
from litbench.models.reward import RewardModel
from litbench.runs.errors import ConfigError, DataError

pytest.importorskip("torch")
pytest.importorskip("trl")

from litbench.models import publishing
from litbench.models.publishing import check_push, push_model
from litbench.models.reward_training import RewardTraining


def config(**keys):
    return RewardTraining(**{"model_name_or_path": "owner/base", "use_cpu": True, **keys})


PUSH = config(push_to_hub=True, hub_model_id="me/verifier")
PROMPTS, STORIES = ["The gate", "The gate"], ["She carried salt.", "The river forgot."]


@pytest.fixture
def folder(tiny_model, tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    model = RewardModel.load(tiny_model("llama"), max_length=64)
    model.prompts = frozenset({prompt_key("[WP] A gate")})
    model.save(made)
    (made / "README.md").write_text("# A card\n")
    return made


@pytest.fixture
def pushed(monkeypatch):
    """What was pushed, in place of pushing it."""
    calls = []

    def replace_files(name, files, noun, *, private, is_ours):
        assert all(map(is_ours, files))
        calls.append((name, sorted(files), noun, private))
        return "address"

    monkeypatch.setattr(publishing, "replace_files", replace_files)
    return calls


def test_nothing_is_pushed_unasked_and_privately_where_asked(folder, pushed):
    push_model(folder, config(hub_model_id="me/verifier"))
    assert pushed == []
    push_model(folder, PUSH)
    names = sorted(path.name for path in folder.iterdir())
    assert pushed == [("me/verifier", names, "model", True)]


def _write(name, text="x"):
    def spoil(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_write("pytorch_model.bin"), r"pytorch_model\.bin is not a model file"),
        (_write("modeling.py"), r"modeling\.py is not a model file"),
        (_write("deep/optimizer.pt"), r"optimizer\.pt is not a model file"),
        (
            lambda f: (f / "link.json").symlink_to("/etc/hostname"),
            r"link\.json is not a model file",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights in safetensors"),
    ],
)
def test_unexpected_files_are_refused(folder, pushed, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message):
        push_model(folder, PUSH)
    assert pushed == []


APART = {"use_peft": True, "merge_adapter": False}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hub_model_id": None}, "hub_model_id is 'None': set it to owner/name"),
        ({"hub_model_id": "me/verifier@main"}, "set it to owner/name"),
        ({**APART, "model_name_or_path": "/"}, "base model is the local folder"),
        ({**APART, "model_name_or_path": "~"}, "base model is the local folder"),
        ({**APART, "model_name_or_path": "package:litbench/models"}, "is the local folder"),
        (APART, "no token for the Hub"),
        ({}, "no token for the Hub"),
    ],
)
def test_push_is_checked_before_training(options, message, monkeypatch):
    import huggingface_hub  # noqa: PLC0415

    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(ConfigError, match=message):
        check_push(config(**{"push_to_hub": True, "hub_model_id": "me/v", **options}))
    check_push(config())


SCORE = """
import json, sys
from litbench.models.reward import RewardModel
prompts, stories = json.loads(sys.argv[1])
model = RewardModel.load("me/verifier")
print(json.dumps([model.score(prompts, stories).tolist(), sorted(model.prompts)]))
RewardModel.load("me/nothing")
"""


def test_pushed_model_loads_by_name(program, tiny_model, pair_table, tmp_path, monkeypatch):
    pairs = pair_table([{"prompt_id": f"p{index}"} for index in range(8)])
    write_table(pairs, tmp_path / "pairs.parquet")
    keys = {
        "pairs": tmp_path / "pairs.parquet",
        "output_dir": tmp_path / "run",
        "max_length": 64,
        "model_name_or_path": tiny_model("llama"),
        "per_device_train_batch_size": 2,
    }
    train = ["train/bradley_terry.py", *(f"--{key}={value}" for key, value in keys.items())]
    push = ["--push_to_hub", "true", "--hub_model_id", "me/verifier"]
    folder = tmp_path / "run" / "model"
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert "no token for the Hub" in program(*train, *push).stderr
    assert not folder.exists()
    trained = program(*train)
    assert trained.returncode == 0, trained.stderr
    with FakeHub() as hub:
        hub.publish("me/verifier", {"model-00002-of-00002.safetensors": b"old"}, private=True)
        # The model that is there is pushed, and not trained again.
        done = hub.run(tmp_path, *train, *push, token=TOKEN)
        assert done.returncode == 0, done.stderr
        assert "unchanged: " in done.stdout
        assert "pushed: " in done.stdout
        assert not hub.strange
        repository = hub.repositories["me/verifier"]
        assert repository.private
        assert repository.files() == {path.name: path.read_bytes() for path in folder.iterdir()}
        assert not [name for name, b in repository.files().items() if str(tmp_path).encode() in b]
        question = json.dumps([PROMPTS, STORIES])
        scored = hub.run(tmp_path, "-c", SCORE, question, token=TOKEN)
    assert scored.stdout, scored.stderr
    rewards, prompts = json.loads(scored.stdout)
    expected = RewardModel.load(folder).score(PROMPTS, STORIES)
    assert_same(rewards, expected)
    assert set(prompts) == set(prompt_keys(pairs))
    assert "gated, accept its terms" in scored.stderr
