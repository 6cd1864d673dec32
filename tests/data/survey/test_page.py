"""Surveys as JSON, text and HTML."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from descend.data import read
from descend.data.survey import survey
from descend.data.survey.page import as_html, as_json, as_text

X = np.where(np.arange(20) == 4, np.nan, np.arange(20.0))


def found(**columns):
    return survey({"train": read({"x": X, **columns})})


def test_json_has_fields_samples_and_problems():
    value = json.loads(json.dumps(as_json(found(when=np.arange(20).astype("M8[D]"))), allow_nan=False))
    assert value["fields"]["x"] == {
        "shape": [],
        "dtype": "float64",
        "count": 19,
        "missing": 1,
        "infinite": 0,
        "minimum": 0,
        "maximum": 19,
        "mean": pytest.approx(186 / 19),
        "deviation": pytest.approx(np.nanstd(X)),
    }
    assert value["fields"]["when"]["maximum"] == "1970-01-20"
    assert value["samples"][3]["x"] == 3
    assert value["samples"][4]["x"] is None
    assert [problem["kind"] for problem in value["problems"]] == ["missing"]
    assert (value["counts"], value["read"]) == ({"train": 20}, {"train": 20})


def test_arrays_are_shown_by_their_range():
    value = as_json(found(v=np.arange(40 * 20).reshape(20, 40), w=np.arange(40).reshape(20, 2)))
    assert value["samples"][1]["v"] == {"shape": [40], "minimum": 40, "maximum": 79}
    assert value["samples"][1]["w"] == [2, 3]


def test_samples_in_text_have_names_of_classes_and_ranges_of_arrays():
    kind = np.where(np.arange(20) < 1, "a", "b")
    data = read({"v": np.arange(40 * 20).reshape(20, 40), "kind": kind}, target="kind")
    lines = as_text(survey({"train": data})).splitlines()
    assert [line for line in lines if line.startswith("sample")] == [
        f"sample {i}: v=40, {40 * i} to {40 * i + 39}, kind={'b' if i else 'a'}" for i in range(3)
    ]


def test_text_has_a_row_for_each_field_and_a_line_for_each_problem():
    lines = as_text(found(kind=np.where(np.arange(20) < 5, "a", "b\x1b[31m"))).splitlines()
    assert lines[0].startswith("dict: train 20 samples")
    assert re.match(r"x +- +float64 +19 +1 +0 +19 +9.78947", next(line for line in lines if line.startswith("x")))
    of_text = next(line for line in lines if line.startswith("kind"))
    assert "a: 5, b\\x1b[31m: 15" in of_text
    assert re.search(r"text +20 +0 +1 chars +6 chars +4.75 chars", of_text)
    assert lines[-2:] == ["1 problems:", "  missing (train): 'x' is missing in 1 of 20 samples"]
    assert as_text(survey({"train": read({"x": np.arange(3)})})).endswith("no problems were found")


def test_html_has_a_contact_sheet_and_escapes_names(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 6, 5, 3)).astype(np.uint8)
    for i, one in enumerate(pixels):
        (tmp_path / "<b>").mkdir(exist_ok=True)
        (tmp_path / "c").mkdir(exist_ok=True)
        Image.fromarray(one).save(tmp_path / ("<b>" if i else "c") / f"{i}.png")
    page = as_html(survey({"train": read(tmp_path)}), "<script>")
    contents = re.findall(r"data:image/png;base64,([^\"]+)", page)
    shown = [np.asarray(Image.open(io.BytesIO(base64.b64decode(content)))) for content in contents]
    np.testing.assert_array_equal(shown, pixels[[1, 2, 0]])
    assert "<figcaption>0: label=&lt;b&gt;</figcaption>" in page
    assert "<td>3 x 6 x 5, " in page
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;b&gt;" in page


def test_packed_text_is_shown_as_text(tmp_path):
    (tmp_path / "a.txt").write_text("Once upon a time.\n" * 30)
    made = survey({"train": read(tmp_path / "a.txt", length=18)})
    assert as_json(made)["samples"][0]["text"] == "Once upon a time.\n"
    assert "sample 0: Once upon a time." in as_text(made)
    assert "<pre>Once upon a time." in as_html(made, "a.txt")


def test_what_is_skipped_is_shown_everywhere(tmp_path):
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "\x1b[31m<b>.txt").write_text("x")
    (tmp_path / "_SUCCESS").write_text("")
    made = survey({"train": read(tmp_path), "test": read(tmp_path, role="test")})
    [line] = as_json(made)["notes"]
    assert line.startswith(f"skipped 2 of 4 files in {tmp_path}: 1 marker (_SUCCESS: ")
    assert [one for one in as_text(made).splitlines() if one.startswith("skipped")] == [line.replace("\x1b", "\\x1b")]
    page = as_html(made, "data")
    assert "skipped 2 of 4 files" in page
    assert "<b>.txt" not in page
    assert as_json(survey({"train": read(tmp_path / "a.csv")}))["notes"] == []


def test_the_contact_sheet_has_images_with_transparency(tmp_path):
    clear = np.random.default_rng(0).integers(0, 256, (9, 7, 4)).astype(np.uint8)
    Image.fromarray(clear).save(tmp_path / "a.png")
    page = as_html(survey({"train": read(tmp_path, colors="rgba")}), "data")
    [content] = re.findall(r"data:image/png;base64,([^\"]+)", page)
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        np.testing.assert_array_equal(np.asarray(image), clear[..., :3])
