"""Each block of the README works as it stands, in a fresh directory."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from system_needs import needs_fashion_mnist

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(command, folder):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"))
def test_python(code, tmp_path):
    done = run([sys.executable, "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


def commands():
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("descend ")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    commands(),
)
def test_commands(line, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = run([sys.executable, "-m", *shlex.split(line)], tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_command_and_file_that_is_named_exists():
    assert commands()
    for line in commands():
        for word in shlex.split(line):
            assert not word.endswith(".prototext") or (ROOT / word).is_file(), word
    for target, anchor in re.findall(r"\]\((?!https:)([^)#]+)(?:#([^)]+))?\)", README):
        assert (ROOT / target).exists(), target
        headings = re.findall(r"^#+ (.+)$", (ROOT / target).read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in headings}


def test_it_fits_a_screen_and_has_its_numbers_from_the_code():
    import descend.rule_index

    assert len(README.splitlines()) < 100
    assert f"any of {len(descend.rule_index.rules())} " in README


@pytest.mark.slow  # reads two studies
def test_its_pictures_are_those_of_the_records():
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs" / "make_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, text in module.pictures().items():
        assert (ROOT / "docs" / "drawings" / name).read_text() == text, "run python docs/make_pictures.py"


@pytest.mark.parametrize("name", ["digits", pytest.param("fashion-mnist", marks=needs_fashion_mnist)])
def test_the_examples_are_what_their_script_writes(name, tmp_path):
    import descend

    experiment = descend.zoo.demo_experiment(name)
    parts = {part: getattr(experiment, part) for part in ("trainer", "model", "data_reader", "optimizer")}
    descend.save_prototext(tmp_path / "made.prototext", **parts)
    kept = ROOT / "examples" / f"lenet_{name.replace('-', '_')}.prototext"
    assert kept.read_text() == (tmp_path / "made.prototext").read_text()
