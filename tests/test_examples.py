"""The example scripts do what they say, in a reduced form."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from system_needs import library, needs_library

from descend.data import file_format
from descend.lower import registry
from descend.optim import named_optimizers

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Loads an example as a module, in an empty folder; what it registers is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file_format, "_ADDED", [])
    monkeypatch.setattr(named_optimizers, "_CLASSES", dict(named_optimizers._CLASSES))
    monkeypatch.setattr(registry, "_LOWERINGS", dict(registry._LOWERINGS))

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load


LIBRARIES = {"hugging_face": "transformers", "onnx_use": "onnxruntime"}
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_library(LIBRARIES[name]) if name in LIBRARIES else []) for name in SCRIPTS]
)
def test_it_runs_as_it_stands_without_arguments(name, tmp_path):
    """A copy, as make_prototext.py writes beside itself."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("studies"))
    shutil.copy(EXAMPLES.parent / "LICENSE", tmp_path)
    (tmp_path / "work").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent)}
    command = [sys.executable, str(tmp_path / "examples" / f"{name}.py")]
    done = subprocess.run(
        command,
        cwd=tmp_path / "work",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(("name", "module"), LIBRARIES.items())
def test_a_library_that_an_example_needs_is_named_where_it_is_missing(script, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit, match=rf"needs the library {module}: pip install {module}$"):
        script(name).main()


@pytest.mark.slow
def test_gpt_learns_a_text(script, capsys):
    """From an even guess among the characters to better than the frequencies of single ones, 4.4 bits."""
    assert script("gpt_text").main(steps=60) < 4.4
    shown = capsys.readouterr().out
    assert shown.startswith("step 1: 6.")
    assert len(shown.partition("-" * 40 + "\n")[2].rpartition("\n" + "-" * 40)[0]) == 320  # the paragraph


@pytest.mark.slow
def test_digits_are_learnt_and_resumed(script, capsys):
    module = script("fit_digits")
    module.train("run")
    module.train("run")
    first, again = (line for line in capsys.readouterr().out.splitlines() if "test accuracy" in line)
    assert float(first.rpartition(" ")[2].rstrip("%")) > 90
    assert again == first


@pytest.mark.slow
def test_a_large_batch_learns(script):
    result = script("large_batch").main()
    assert result.history[-1]["accuracy"] > 0.5
    assert result.steps == 30


def test_an_autoencoder_is_better_than_the_mean_image(script, capsys):
    assert script("autoencoder").main(epochs=8) < 0.05
    assert "of the mean image 0.07" in capsys.readouterr().out


def test_a_gan_alternates(script, capsys):
    script("gan").main(epochs=2)
    assert "finished 2 of 2 epochs" in capsys.readouterr().out


@pytest.mark.slow
def test_eight_trainers_exchange_models(script):
    accuracies = script("ltfb").main("run", rounds=1)
    assert len(accuracies) == 8
    assert Path("run/tournament.jsonl").read_text().count("\n") == 8


def test_kfac_takes_fewer_updates(script):
    sgd, kfac = script("kfac").main(steps=15)
    assert kfac < sgd / 2


@pytest.mark.slow
def test_a_rule_of_ones_own_is_compared(script):
    assert "TwoMeans" in script("own_optimizer").main(steps=10, trials=2)


def test_a_layer_of_ones_own_trains(script, capsys):
    assert script("own_layer").main(epochs=2) > 0.8
    assert 'kind: "Swish"' in capsys.readouterr().out


def test_a_format_of_ones_own_is_read(script):
    assert script("own_reader").main() > 0.8


def test_a_model_of_hugging_face_learns(script):
    library("transformers")
    assert script("hugging_face").main(steps=40) < 2.5  # an even guess among 32 tokens is 3.5


def test_a_slurm_job_is_written(script, monkeypatch):
    assert script("slurm_job").main("job") == 0
    text = Path("job/batch.sh").read_text()
    assert "#SBATCH --ntasks-per-node=2" in text
    assert "scontrol requeue" in text


def test_an_exported_network_runs_without_torch(script):
    library("onnxruntime")
    assert script("onnx_use").main(epochs=1) > 0.5


def test_a_loop_of_gluon_fits_a_line(script):
    assert script("from_mxnet").main(epochs=10) < 1e-3


@pytest.mark.slow
def test_a_program_of_lbann_runs(script):
    assert script("from_lbann").main("work", epochs=2) > 0.8
    assert Path("work/out.log").stat().st_size > 0


def test_every_example_is_listed_and_tested():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in sorted(scripts) if f"({name}.py)" not in listed] == []
    tested = Path(__file__).read_text()
    elsewhere = {"make_prototext"}  # in test_readme.py
    assert [name for name in sorted(scripts - elsewhere) if f'script("{name}")' not in tested] == []
