"""What of a model's folder is uploaded, what is refused, and that it loads by its name."""

import json

import numpy as np
import pytest
from fake_hub import TOKEN, FakeHub

from litbench.config import load_config
from litbench.errors import ConfigError, DataError
from litbench.models.reward import RewardModel
from litbench.text import prompt_key

pytest.importorskip("torch")
pytest.importorskip("transformers")
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
def module(load_program):
    return load_program("train/push_model.py")


def run(module, folder, **keys):
    values = {"model": folder, "repository": "me/verifier", **keys}
    arguments = [f"--{key}={json.dumps(value, default=str)}" for key, value in values.items()]
    module.main(load_config(module.Config, arguments))


def test_without_push_it_only_shows_files_and_sizes(module, folder, capsys):
    run(module, folder)
    said = capsys.readouterr().out
    size = (folder / "model.safetensors").stat().st_size
    assert f"{size:,} bytes  model.safetensors" in said
    assert "nothing was pushed" in said


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "litbench.json").unlink(), r"holds no litbench\.json"),
        (lambda f: (f / "pytorch_model.bin").write_bytes(b"x"), r"pytorch_model\.bin is no file"),
        (lambda f: (f / "modeling.py").write_text("x"), r"modeling\.py is no file"),
        (
            lambda f: (f / "deep").mkdir() or (f / "deep" / "optimizer.pt").write_bytes(b"x"),
            "pt is",
        ),
        (lambda f: (f / "link.json").symlink_to("/etc/hostname"), r"link\.json is no file"),
        (lambda f: (f / "model.safetensors").unlink(), "holds no weights as safetensors"),
    ],
    ids=["record", "pickle", "code", "folder", "link", "weights"],
)
def test_what_a_models_folder_should_not_hold_is_refused(module, folder, spoil, message):
    spoil(folder)
    with pytest.raises(DataError, match=message):
        run(module, folder)


@pytest.mark.parametrize("name", ["litbench.json", "run.json"])
def test_texts_of_training_prompts_are_refused_and_not_repeated(module, folder, name):
    (folder / "run.json").write_text(json.dumps({"training_prompts": []}))
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, "training_prompts": ["[WP] A gate"]}))
    with pytest.raises(DataError, match="1 of 1 training_prompts are no hashes") as caught:
        run(module, folder)
    assert "gate" not in str(caught.value)


@pytest.mark.parametrize("base", ["/models/base", "./base", "~/base"])
def test_an_adapter_of_a_local_base_is_refused(module, folder, base):
    content = json.loads((folder / "litbench.json").read_text())
    (folder / "adapter_config.json").write_text("{}")
    for name, refused in ((base, True), ("owner/base", False), ("package:one/base", False)):
        content["adapter"] = {"base": name, "quantized": False}
        (folder / "litbench.json").write_text(json.dumps(content))
        if refused:
            with pytest.raises(DataError, match="which nobody else has"):
                run(module, folder)
        else:
            run(module, folder)


@pytest.mark.parametrize("where", ["home", "cwd"])
def test_folders_of_this_machine_are_not_published(module, folder, where, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    config = json.loads((folder / "config.json").read_text())
    spoilt = {**config, "deep": [{"path": str(tmp_path / where / "models" / "base")}]}
    (folder / "config.json").write_text(json.dumps(spoilt))
    with pytest.raises(DataError, match=r"config\.json names a folder of this machine"):
        run(module, folder)
    (folder / "config.json").write_text(json.dumps({**config, "deep": ["/elsewhere"]}))
    run(module, folder)


def test_a_repository_is_owner_and_name_only(module, folder):
    with pytest.raises(ConfigError, match="give owner/name and no more"):
        run(module, folder, repository="me/verifier@main")


SCORE = """
import json, sys
from litbench.models.reward import RewardModel
prompts, stories = json.loads(sys.argv[2])
model = RewardModel.load(sys.argv[1])
print(json.dumps([model.score(prompts, stories).tolist(), sorted(model.prompts)]))
"""


def test_a_pushed_model_loads_by_its_name_with_equal_scores(folder, tmp_path):
    arguments = ["--model", folder, "--repository", "me/verifier"]
    with FakeHub() as hub:
        shown = hub.run(tmp_path, "train/push_model.py", *arguments, token=TOKEN)
        assert shown.returncode == 0, shown.stderr
        assert not hub.repositories
        bare = hub.run(tmp_path, "train/push_model.py", *arguments, "--push", "true")
        assert "there is no token for the Hub" in bare.stderr
        hub.publish("me/verifier", {"model-00002-of-00002.safetensors": b"old"}, private=True)
        done = hub.run(tmp_path, "train/push_model.py", *arguments, "--push", "true", token=TOKEN)
        assert done.returncode == 0, done.stderr
        assert "pushed: " in done.stdout
        assert not hub.strange
        repository = hub.repositories["me/verifier"]
        assert repository.private
        there = {
            path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.iterdir()
        }
        assert repository.files() == there
        question = json.dumps([PROMPTS, STORIES])
        scored = hub.run(tmp_path, "-c", SCORE, "me/verifier", question, token=TOKEN)
        assert scored.returncode == 0, scored.stderr
        unknown = hub.run(tmp_path, "-c", SCORE, "me/nothing", question, token=TOKEN)
    rewards, prompts = json.loads(scored.stdout)
    expected = RewardModel.load(folder).score(PROMPTS, STORIES)
    np.testing.assert_allclose(rewards, expected, rtol=0, atol=1e-6)
    assert prompts == [prompt_key("[WP] A gate")]
    assert "cannot fetch the model me/nothing" in unknown.stderr


def test_a_public_model_stays_as_it_is_while_private_is_asked_for(folder, tmp_path):
    with FakeHub() as hub:
        hub.publish("me/verifier", {"README.md": b"old"})
        done = hub.run(
            tmp_path, "train/push_model.py", "--model", folder, "--repository", "me/verifier",
            "--push", "true", token=TOKEN,
        )  # fmt: skip
        assert "me/verifier is public on the Hub" in done.stderr
        assert hub.repositories["me/verifier"].files() == {"README.md": b"old"}
