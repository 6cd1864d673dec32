"""Pictures of the pages, to be looked at: make pages

Writes a run page, the report of a study in `examples/studies` and the list of `descend view` into `build/pages`, and
pictures of each at 1280, 768 and 390 pixels, light and dark. Needs playwright and a Chromium.
"""

from __future__ import annotations

import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
OUT = ROOT / "build" / "pages"
STUDY = ROOT / "examples" / "studies" / "nesterov_lars" / "confirmatory"
RATES = {"slow": 0.01, "fast": 0.1}
HEIGHT = 6000  # pixels: of long pages the beginning is enough


def make_runs() -> Iterator[Path]:
    """Two runs on the digits, at two learning rates."""
    import descend

    for name, rate in RATES.items():
        folder = OUT / "runs" / name
        shutil.rmtree(folder, ignore_errors=True)
        data = descend.zoo.digits()
        images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
        hidden = descend.Relu(descend.FullyConnected(images, num_neurons=32))
        outputs = descend.FullyConnected(hidden, num_neurons=10)
        loss = descend.CrossEntropy(descend.Softmax(outputs), labels)
        accuracy = descend.Metric(descend.CategoricalAccuracy(descend.Softmax(outputs), labels), name="accuracy")
        norms = [descend.GradientNorm(every_steps=10), descend.UpdateNorm(every_steps=10)]
        model = descend.Model(12, objective_function=loss, metrics=[accuracy], callbacks=norms)
        trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
        descend.run(trainer, model, data, descend.SGD(learn_rate=rate, momentum=0.9), folder)
        yield folder


def shoot(name: str, url: str) -> None:
    """Pictures of one page."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for width in (1280, 768, 390):
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page = context.new_page()
                page.goto(url)
                height = min(HEIGHT, int(page.evaluate("document.documentElement.scrollHeight")))
                file = OUT / f"{name}-{width}-{scheme}.png"
                page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
                sys.stdout.write(f"{file.relative_to(ROOT)}\n")
                context.close()
        browser.close()


def main() -> int:
    """Write and look at all pages."""
    from descend.pages.run import write_run_page
    from descend.study import read_directory
    from descend.view.server import ViewServer
    from descend.view.subjects import subjects

    OUT.mkdir(parents=True, exist_ok=True)
    runs = list(make_runs())
    shoot("run", write_run_page(runs[0]).as_uri())
    shoot("study", read_directory(STUDY).report(OUT / "study").as_uri())
    with ViewServer(subjects(runs)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shoot("view", server.url)
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
