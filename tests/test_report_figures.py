"""How numbers become text, and how text is led back to its number."""

import json

import pytest

from mtpbench.errors import UserError
from mtpbench.report import figures
from mtpbench.report.figures import Figure, Files, Null, derived

REFERENCE = "metrics/runs/cpu_vllm_code_mtp/result.json#/summary/loads/0/speedup/ratio"


@pytest.mark.parametrize(
    ("format", "value", "text"),
    [
        ("ratio", 1.234, "1.23×"), ("percent", 0.0123, "1.2 %"), ("count", 1234.0, "1,234"), ("length", 2.5, "2.50"),
        ("decimal", 0, "0"), ("decimal", 0.012345, "0.0123"), ("decimal", 1.2345, "1.23"), ("decimal", 12.345, "12.3"),
        ("decimal", 1234.5, "1,234"), ("decimal", -0.5, "-0.500"), ("decimal", 0.9999, "1.00"), ("decimal", 9.999, "10.0"),
        ("gigabytes", 20_000_000_000, "20.0"), ("dollars", 0.1234, "$0.123"),
        ("probability", 0.0214, "0.021"), ("probability", 0.0001, "< 0.001"), ("short", "0123456789abcdef", "0123456789ab"),
    ],
)  # fmt: skip
def test_formats(format, value, text):
    assert figures.FORMATS[format](value) == text


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"x": [1.5, {"y/z ~": 2}], "s": {"half_width": 0.01, "ratio": 1.03}}))
    (tmp_path / "a.yaml").write_text("price: {usd: 3.5}\n")
    (tmp_path / "a.csv").write_text("name,rate\none,53.19\n")
    return Files(tmp_path)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("a.json#/x/0", 1.5), ("a.yaml#/price/usd", 3.5), ("a.csv#/0/rate", "53.19"),
        (f"a.json#/x/1/{figures.pointer_part('y/z ~')}", 2),
        ("total(a.json#/x/0, 2, -1e-1)", 3.4), ("break_even(a.json#/x/0, a.yaml#/price/usd)", 3.5 / 1.5),
        ("length_of_rate(a.csv#/0/rate, 4)", 1 + 0.5319 * 4), ("total(noise_floor(a.json#/s), 0.02)", 0.05),
        ('number("abc")', 3),
    ],
)  # fmt: skip
def test_a_source_is_evaluated_from_the_files(files, source, value):
    assert figures.evaluate(source, files) == pytest.approx(value)


@pytest.mark.parametrize("source", ["", "nonsense", "a.json#/x/9", "a.json#/nowhere", "b.json#/x"])
def test_a_source_that_leads_nowhere_is_an_error(files, source):
    with pytest.raises((ValueError, KeyError, OSError)):
        figures.evaluate(source, files)


def test_a_derived_figure_carries_its_formula_and_links_to_its_first_part():
    step, base = Figure(3.0, "decimal", "a.json#/step", "arm test"), Figure(2.0, "decimal", "a.json#/base")
    made = derived("break_even", base, step, format="length")
    assert (made.text, made.source, made.reference) == ("1.50", "break_even(a.json#/base, a.json#/step)", "a.json#/base")
    assert made.title == "length · break_even(a.json#/base, a.json#/step) · records: arm test"


def test_a_derived_figure_without_a_part_has_that_parts_reason():
    assert derived("break_even", Figure(1.0, "decimal", "a.json#/x"), Null("no step"), format="length") == Null("no step")
    assert derived("break_even", Figure(0.0, "decimal", "a#/x"), Figure(1.0, "decimal", "a#/y"), format="length").text.startswith("n/a: ")


@pytest.mark.parametrize("suffix", ["md", "html"])
def test_what_is_written_is_found_again(tmp_path, suffix):
    figure = Figure(1.25, "ratio", REFERENCE, "/sessions/*/requests, both arms")
    formula = Figure(2.0, "decimal", f"break_even({REFERENCE}, {REFERENCE})")
    path = tmp_path / f"page.{suffix}"
    path.write_text("<p>before " + " and ".join(each.markdown() if suffix == "md" else each.html() for each in (figure, formula)))
    found = list(figures.shown_in(path, tmp_path))
    assert [(each.text, each.source, each.format) for each in found] == [("1.25×", REFERENCE, "ratio"), ("2.00", formula.source, "decimal")]


def test_check_names_a_figure_that_differs_and_one_that_leads_nowhere(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "a.json").write_text('{"x": 1.5}')
    page = tmp_path / "report/results.md"
    page.write_text(Figure(1.5, "ratio", "a.json#/x").markdown())
    assert figures.check(tmp_path) == 1
    page.write_text(Figure(1.6, "ratio", "a.json#/x").markdown())
    with pytest.raises(UserError, match="shows '1.60×' where a.json#/x gives '1.50×'"):
        figures.check(tmp_path)
    page.write_text(Figure(1.5, "ratio", "a.json#/y").markdown())
    with pytest.raises(UserError, match="leads nowhere: a.json#/y"):
        figures.check(tmp_path)
