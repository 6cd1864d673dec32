"""Pages of the site: their Python works from top to bottom in an empty folder, and the commands they name exist."""

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from system_needs import FASHION_MNIST, library, needs_linux, require

import descend
from descend.optim import named_optimizers
from tools.command_pages import commands

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {
    str(path.relative_to(DOCS).with_suffix("")): path.read_text()
    for folder in ("tutorials", "how-to", "explanation", "migration")
    for path in sorted((DOCS / folder).glob("*.md"))
}
ALL = {**{path.stem: path.read_text() for path in DOCS.glob("*.md")}, **PAGES}
SLOW = {"tutorials/digits_to_ranks", "tutorials/first_comparison", "tutorials/small_gpt", "tutorials/ten_minutes"}


def blocks(text, language):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page, text in PAGES.items()
        if blocks(text, "python")
    ],
)
def test_python(page, tmp_path, monkeypatch, capsys):
    """A page says `<!-- needs: NAME -->` where it is about a library that need not be installed.

    What a block prints may follow it, in a text block after `<!-- output -->`.
    """
    for name in re.findall(r"<!-- needs: (\w+) -->", PAGES[page]):
        library(name)
    there = "dataset-fashion-mnist" not in PAGES[page] or FASHION_MNIST.is_dir()
    require("Fashion-MNIST", there, "Debian: dataset-fashion-mnist")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(named_optimizers, "_CLASSES", dict(named_optimizers._CLASSES))  # a page registers its own
    state = torch.random.get_rng_state()
    module = types.ModuleType("page")  # classes of a page say that they are from there
    monkeypatch.setitem(sys.modules, "page", module)
    try:
        for code, output in with_output(PAGES[page]):
            capsys.readouterr()
            exec(compile(code, f"{page}.md", "exec", dont_inherit=True), vars(module))
            assert without_numbers(output) in without_numbers(capsys.readouterr().out), code
    finally:
        torch.random.set_rng_state(state)


# What each page's first block is run by: a process that imports the package once, then one process a page.
PAGE_RUNNER = """
import json, os, sys, tempfile

class Hiding:  # a finder of modules to which some are not there
    missing = set()
    def __init__(self, finder): self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in self.missing else self.finder.find_spec(name, path, target)

pages = json.load(sys.stdin)
sys.meta_path[:] = map(Hiding, sys.meta_path)
Hiding.missing = set.union(*(set(missing) for missing, _ in pages.values()))
import descend, torch
for page, (missing, code) in pages.items():
    child = os.fork()
    if child == 0:
        Hiding.missing = set(missing)
        os.chdir(tempfile.mkdtemp(dir="."))
        exec(compile(code, page, "exec", dont_inherit=True), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("FAILED", page, flush=True)
"""
# The modules of packages that extras and pages name; what torch itself brings is not among them.
OPTIONAL = {"vl-convert-python": "vl_convert", "pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
OPTIONAL |= {name: name for name in ("scipy", "simplejpeg", "pyarrow", "h5py", "tokenizers", "ray", "tensorboard")}
OPTIONAL |= {name: name for name in ("mlflow", "wandb", "optuna", "onnx", "onnxruntime", "onnxscript", "transformers")}
OPTIONAL |= {name: name for name in ("lightning", "accelerate", "pandas", "polars", "torchmetrics", "datasets")}


def first_block(text):
    """The modules that are not there, and the code."""
    before, code = text.split("```python\n", 1)
    said = {word for line in re.findall(r"pip install ([^`\n]+)", before) for word in line.split()}
    return [sorted(module for package, module in OPTIONAL.items() if package not in said), code.partition("\n```")[0]]


@pytest.mark.slow(seconds=90)
@pytest.mark.timeout(1200)
@needs_linux
def test_the_first_block_of_a_page_needs_what_the_page_said_to_install_before_it(tmp_path):
    """Beside what the package itself requires. Pages that are about another library are left out."""
    pages = {page: text for page, text in ALL.items() if blocks(text, "python") and "<!-- needs:" not in text}
    given = json.dumps({page: first_block(text) for page, text in pages.items()})
    environment = {**os.environ, "PYTHONPATH": str(DOCS.parent)}
    done = subprocess.run(
        [sys.executable, "-c", PAGE_RUNNER],
        input=given,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^FAILED (.*)$", done.stdout, re.MULTILINE) == [], done.stderr


def with_output(text):
    """Each Python block with the output that the page shows of it, which may be empty."""
    for part in text.split("```python\n")[1:]:
        code, _, rest = part.partition("```")
        shown = re.search(r"<!-- output -->\n```text\n(.*?)```", rest, re.DOTALL)
        yield code, shown[1] if shown else ""


def without_numbers(text):
    """The words: the last digits, and with them the widths of columns, depend on the processor and on torch."""
    return re.sub(r"-?\d[\d.,]*(?:e[+-]?\d+)?", "#", " ".join(text.split()))


def lines(text):
    found = [line.split(" #")[0].strip() for code in blocks(text, "(?:sh|bash)") for line in code.splitlines()]
    return [line for line in found if line.startswith("descend ")]


@pytest.mark.parametrize("page", [page for page, text in ALL.items() if lines(text)])
def test_commands_exist_with_their_options(page):
    known = commands()
    for line in lines(ALL[page]):
        words = shlex.split(line)[1:]
        name = " ".join(words[:2]) if words[0] == "study" else words[0]
        if name.startswith("--"):
            continue  # an option of `descend` itself
        options = {
            option for parameter in known[name].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        if name == "launch":  # passes what follows its file on
            options |= {option for parameter in known["run"].params for option in parameter.opts}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= options, line


def test_every_page_is_in_the_index_of_its_folder():
    for page in PAGES:
        folder, _, name = page.partition("/")
        assert name == "index" or re.search(rf"^{name}$", PAGES[f"{folder}/index"], re.MULTILINE), page


def test_names_in_words_exist():
    """`descend.X.Y` in running text or code is a public name."""
    for page, text in PAGES.items():
        for name in set(re.findall(r"\bdescend((?:\.[A-Za-z_]\w*)+)", text)):
            thing = descend
            for part in name.strip(".").split("."):
                if part in ("com", "md"):
                    break
                thing = getattr(thing, part)
            assert thing is not None, (page, name)


# Torch's name of an optimizer and of its arguments, where ours is another one.
OPTIMIZERS = {"Adagrad": "AdaGrad", "RMSprop": "RMSProp", "Adadelta": "AdaDelta", "NAdam": "Nadam"}
ARGUMENTS = {
    "alpha": ["rho"],
    "betas": ["beta1", "beta2"],
    "etas": ["eta_minus", "eta_plus"],
    "step_sizes": ["step_min", "step_max"],
    "momentum_decay": ["schedule_decay"],
    "initial_accumulator_value": ["initial"],
}
OF_ADAFACTOR = {"eps": ["eps1", "eps2"]}
# How torch computes, and what has no number to compare: the form of decay, and the scale of Muon, None for "original".
OTHER = {"foreach", "fused", "capturable", "differentiable", "maximize", "decoupled_weight_decay", "adjust_lr_fn"}


def differing_defaults():
    for name in (
        "SGD",
        "Adagrad",
        "RMSprop",
        "Adadelta",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "Rprop",
        "Adafactor",
        "Muon",
    ):
        theirs = inspect.signature(getattr(torch.optim, name)).parameters
        ours = inspect.signature(getattr(descend.optim, OPTIMIZERS.get(name, name))).parameters
        for argument, parameter in theirs.items():
            if parameter.default is parameter.empty or argument in OTHER:
                continue
            names = (OF_ADAFACTOR if name == "Adafactor" else {}).get(argument, ARGUMENTS.get(argument, [argument]))
            values = [ours[one].default for one in names]
            if parameter.default != (values[0] if len(values) == 1 else tuple(values)):
                yield name, argument, parameter.default, values[0]


def test_every_default_that_differs_from_torch_is_in_the_table():
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)`[^|]*\| ([\d.e-]+) \| ([\d.e-]+) \|$", PAGES["migration/torch_loop"], re.M
    )
    table = [(name, argument, float(torchs), float(ours)) for name, argument, torchs, ours in rows]
    assert table == [(name, argument, float(a), float(b)) for name, argument, a, b in differing_defaults()]
