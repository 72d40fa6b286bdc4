"""What does not follow from the records is found and named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from making import requests, result

import measure
from mtpbench import results
from mtpbench.analysis.audit import audit, difference
from mtpbench.errors import UserError
from mtpbench.report import cells, figures

CELLS = ["cpu_vllm_code_baseline", "cpu_vllm_code_mtp"]
SHOWN = [("summary/loads/0/speedup/ratio", "ratio"), ("summary/loads/0/arms/test/acceptance/length", "length"), ("summary/loads/0/arms/test/decode_tok_s", "decimal")]


@pytest.fixture
def root(tmp_path):
    """A root with two results, the table of cells, a report that shows three figures of one, and a plot's data."""
    for cell in CELLS:
        results.write(results.path_of(cell, tmp_path), result(cell))
    (tmp_path / "report").mkdir()
    (tmp_path / "metrics/plots").mkdir()
    cells.frame(cells.load(tmp_path)).to_csv(tmp_path / "metrics/cells.csv", index=False)
    files = figures.Files(tmp_path)
    shown = []
    for pointer, format in SHOWN:
        source = f"metrics/runs/{CELLS[1]}/result.json#/{pointer}"
        shown.append(figures.Figure(figures.evaluate(source, files), format, source))
    (tmp_path / "report/results.md").write_text("\n".join(figure.markdown() for figure in shown))
    (tmp_path / "report/index.html").write_text("<p>" + "</p><p>".join(figure.html() for figure in shown))
    (tmp_path / "metrics/plots/p.csv").write_text(f"y,y_source\n{shown[0].value!r},{shown[0].source}\n")
    return tmp_path


def edit(root, cell, change, seal=True):
    path = results.path_of(cell, root)
    made = json.loads(path.read_text())
    change(made)
    path.write_text(results.text_of(results.seal(made) if seal else made))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def found(root) -> str:
    with pytest.raises(UserError) as error:
        audit(root)
    return str(error.value)


def test_a_good_tree_passes_and_is_counted(root):
    assert audit(root) == {"results": 2, "rows": 4, "figures": 7}


def test_an_empty_tree_passes(tmp_path):
    assert audit(tmp_path) == {"results": 0, "rows": 0, "figures": 0}


@pytest.mark.parametrize("seal", [False, True])
def test_a_record_edited_by_hand(root, seal):
    edit(root, CELLS[1], lambda made: requests(made)[0]["times"].__setitem__(-1, requests(made)[0]["times"][-1] + 0.01), seal)
    said = found(root)
    assert f"{CELLS[1]}/result.json" in said
    assert ("/summary/loads/0/arms/test/" in said) if seal else ("checksum" in said)


def test_a_summary_edited_by_hand_and_sealed_again(root):
    edit(root, CELLS[1], lambda made: made["summary"]["loads"][0]["speedup"].update(ratio=9.99))
    assert "/summary/loads/0/speedup/ratio is 9.99 where the records give" in found(root)


def test_a_gate_turned_by_hand(root):
    edit(root, CELLS[1], lambda made: made["summary"]["gates"][0].update(passed=False))
    assert "/summary/gates/0/passed is False where the records give True" in found(root)


def test_a_truncated_file(root):
    path = results.path_of(CELLS[0], root)
    path.write_bytes(path.read_bytes()[:-1000])
    assert f"{CELLS[0]}/result.json: not a complete JSON file" in found(root)


def test_a_result_in_another_cells_place(root):
    results.path_of(CELLS[0], root).write_text(results.path_of(CELLS[1], root).read_text())
    assert f"holds cell {CELLS[1]}" in found(root)


def test_a_spec_that_is_not_what_the_fingerprint_says(root):
    edit(root, CELLS[0], lambda made: made["spec"]["protocol"].update(warmup=5))
    assert "/fingerprint is not that of its spec" in found(root)


def test_records_of_another_format(root):
    edit(root, CELLS[0], lambda made: [each.pop("wave") for each in requests(made)])
    assert "not in the format of docs/architecture.md" in found(root)


@pytest.mark.parametrize("page", ["report/results.md", "report/index.html"])
def test_a_changed_digit_in_a_table(root, page):
    text = f"{result(CELLS[1])['summary']['loads'][0]['speedup']['ratio']:.2f}×"
    wrong = text.translate(str.maketrans("0123456789", "1234567890"))
    replace(root / page, text, wrong)
    said = found(root)
    assert said.startswith(page) and wrong in said and text in said and "/summary/loads/0/speedup/ratio" in said


def test_a_changed_digit_in_a_plots_data(root):
    value = repr(result(CELLS[1])["summary"]["loads"][0]["speedup"]["ratio"])
    replace(root / "metrics/plots/p.csv", value, value[:-3] + "999")
    assert "metrics/plots/p.csv" in found(root)


def test_a_changed_digit_in_the_table_of_cells(root):
    rate = str(result(CELLS[0])["summary"]["loads"][0]["arms"]["test"]["output_tokens"])
    replace(root / "metrics/cells.csv", f",{rate},", ",1,")
    assert "cells.csv:2, column output_tokens is 1 where the records give" in found(root)


@pytest.mark.parametrize("spoil", [
    lambda text: text[: len(text) // 2], lambda text: "", lambda text: "[]", lambda text: text.replace('"gpu_busy_ms": 3.5', '"gpu_busy_ms": 99'),
    lambda text: text.replace(CELLS[1], CELLS[0]),
])  # fmt: skip
def test_an_anatomy_that_was_edited(root, spoil):
    path = root / f"metrics/anatomy/{CELLS[1]}.json"
    path.parent.mkdir()
    text = results.text_of(results.seal({"cell": CELLS[1], "trace": {"gpu_busy_ms": 3.5}}))
    path.write_text(text)
    assert audit(root)["results"] == 2
    path.write_text(spoil(text))
    assert f"{CELLS[1]}.json: damaged, edited, or of another cell" in found(root)


def test_a_row_of_no_result(root):
    replace(root / "metrics/cells.csv", CELLS[1], "h100_vllm_code_mtp")
    assert "no result has h100_vllm_code_mtp" in found(root)


def test_a_row_that_is_gone(root):
    path = root / "metrics/cells.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert "cells.csv: lacks the row of" in found(root)


def test_a_row_that_stands_twice_is_no_mistake_of_another(root):
    path = root / "metrics/cells.csv"
    path.write_text(path.read_text() + path.read_text().splitlines()[-1])
    assert audit(root)["rows"] == 5


def test_a_column_that_is_gone(root):
    path = root / "metrics/cells.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    path.write_text("\n".join(",".join(row[:-1]) for row in rows))
    assert f"cells.csv: column {rows[0][-1]} is missing here or in the results" in found(root)


def test_a_figure_that_leads_nowhere(root):
    replace(root / "report/results.md", "#/summary/loads/0/speedup", "#/summary/loads/7/speedup")
    assert "leads nowhere" in found(root)


def test_the_command_says_one_line_and_fails(root):
    script = Path(__file__).parents[1] / "scripts/tools.py"
    run = lambda: subprocess.run([sys.executable, script, "audit"], cwd=root, capture_output=True, text=True)  # noqa: E731
    good = run()
    assert (good.returncode, good.stdout) == (0, "audit: 2 results, 4 rows, 7 figures follow from the records\n")
    edit(root, CELLS[1], lambda made: made["summary"].update(valid=False))
    bad = run()
    assert bad.returncode == 1
    assert len(bad.stderr.splitlines()) == 1 and "/summary/valid" in bad.stderr and "readme" not in bad.stderr


@pytest.mark.parametrize("file, content, said", [
    ("metrics/cells.csv", b"", "cells.csv: no table"), ("metrics/cells.csv", b"\xff\x00", "cells.csv: no table"),
    ("report/index.html", b"\xff", "index.html: not UTF-8"), ("report/results.md", b"a\xffb", "results.md: not UTF-8"),
])  # fmt: skip
def test_what_is_shown_and_cannot_be_read_is_named_with_its_remedy(root, file, content, said):
    (root / file).write_bytes(content)
    assert said in found(root) and found(root).endswith("`snakemake -c2 all readme -R study` writes all that is shown anew")


def test_rederive_waits_for_who_measures_the_cell_and_leaves_the_new_result(root):
    """Seen before: it put the old result, brought up to date, over one that had been measured meanwhile."""
    edit(root, CELLS[1], lambda made: made["summary"]["loads"][0]["speedup"].update(ratio=9.99))
    path, script = results.path_of(CELLS[1], root), Path(__file__).parents[1] / "scripts/tools.py"
    old = results.read(path)
    with FileLock(root / measure.lock_of(old)) as lock:
        run = subprocess.Popen([sys.executable, script, "rederive"], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert "waiting" in run.stderr.readline()
        results.write(path, {**result(CELLS[1]), "created_at": "meanwhile"})
        new = path.read_bytes()
        lock.release()
        out, err = run.communicate(timeout=60)
    assert run.returncode == 1 and "written anew meanwhile" in err and path.read_bytes() == new and "0 of 2" in out
    edit(root, CELLS[1], lambda made: made["summary"]["loads"][0]["speedup"].update(ratio=9.99))
    out = subprocess.run([sys.executable, script, "rederive"], cwd=root, capture_output=True, text=True, check=True).stdout
    assert "1 of 2" in out and results.read(path)["sessions"] == old["sessions"]
    edit(root, CELLS[0], lambda made: made.pop("sessions"))
    broken = subprocess.run([sys.executable, script, "rederive"], cwd=root, capture_output=True, text=True)
    assert broken.returncode == 1 and "not in the format of" in broken.stderr and "Traceback" not in broken.stderr


@pytest.mark.parametrize(
    ("one", "other", "where"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "/a/1/b"), ({"a": 1}, {"b": 1}, ""), ([1], [1, 2], ""), (1, True, ""),
        ("1", 1, ""), (None, 0, ""), (1.0, 1.0 + 1e-12, None), (1.0, 1.0 + 1e-6, ""), ({"a": []}, {"a": []}, None), (1, 1.0, None),
    ],
)  # fmt: skip
def test_difference_is_named_by_pointer(one, other, where):
    found = difference(one, other)
    assert (found is None) == (where is None)
    assert found is None or found.startswith(f"{where} is ")
