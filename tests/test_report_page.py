"""The pages over all kinds of studies: what is shown follows from the results, and what should not be believed is not shown."""

import re
import shutil
import subprocess
import sys
import time

import pytest
import report_studies as studies

from mtpbench import results
from mtpbench.analysis.audit import audit
from mtpbench.errors import UserError
from mtpbench.report import cells, exports, figures, page, plots

FRESH = {"state": "fresh", "in_matrix": True, "differences": []}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The twelve cells of the default matrix, an invalid one and a diagnostic one with several loads."""
    root = studies.write(tmp_path_factory.mktemp("full"), studies.matrix())
    studies.write(root, ["h100_vllm_code_mtp"], studies.invalidate)
    studies.write(root, ["h100_vllm_generic_mtp"], studies.diagnostic, concurrency=(1, 4))
    exports.write_cells(studies.build(root), root)
    return root


@pytest.fixture
def root(full, tmp_path):
    return shutil.copytree(full, tmp_path / "root")


def _pages(root) -> dict[str, str]:
    return {name: (root / "report" / name).read_text() for name in ("results.md", "index.html")}


def _part(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


def test_every_figure_leads_to_its_file_and_has_its_value(full):
    wheres = {shown.where for shown in figures.shown(full)}
    assert {"report/results.md", "report/index.html", "metrics/plots/speedup.csv"} <= wheres
    assert figures.check(full) > 1000


def test_every_point_of_a_plot_leads_to_a_file_from_where_the_plot_lies(full):
    for path in (full / "report/index.html", *sorted((full / "metrics/plots").glob("*.svg"))):
        links = re.findall(r'xlink:href="([^"#]+)#', path.read_text())
        assert links or path.name not in ("index.html", "speedup.svg")
        assert all((path.parent / link).is_file() for link in links)


@pytest.mark.parametrize("name", ["report/results.md", "report/index.html", "metrics/cells.csv", "metrics/plots/speedup.csv"])
def test_the_audit_finds_a_changed_digit(tmp_path, name):
    root = studies.write(tmp_path, ["cpu_vllm_code_baseline", "cpu_vllm_code_mtp"])
    exports.write_cells(studies.build(root), root)
    audit(root)
    path = root / name
    text = path.read_text()
    ratio = results.read(results.path_of("cpu_vllm_code_mtp", root))["summary"]["loads"][0]["speedup"]["ratio"]
    value = f"{ratio:.2f}×" if name.startswith("report") else repr(ratio)
    at = text.index(value, text.index("cpu_vllm_code_mtp"))
    digit = at + 3
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
    with pytest.raises(UserError, match=re.escape(name)):
        audit(root)


def test_no_number_stands_in_a_table_without_its_source(full):
    """Cells of the tables that hold figures hold nothing else that looks like one."""
    rows = re.findall(r"<td[^>]*>(.*?)</td>", _part((full / "report/index.html").read_text(), 'id="table-rates"', "</section>"))
    assert rows and not [row for row in rows if re.search(r"\d", re.sub(r"<[^>]*>[^<]*</a>|<[^>]*>", "", row))]


def test_invalid_cells_are_named_with_their_reason_and_nowhere_a_number(full):
    for text in _pages(full).values():
        assert "speculation not active" in text
        assert "runs/h100_vllm_code_mtp/result.json#/summary/loads" not in text
    for path in (full / "metrics/plots").glob("*.csv"):
        assert "h100_vllm_code_mtp" not in path.read_text()


def test_diagnostic_cells_are_marked_and_give_no_answer(full):
    text = _pages(full)["results.md"]
    assert re.search(r"h100 vllm generic mtp .{0,3}random weights", text)
    assert "h100 vllm generic" not in _part(text, "## The answer", "## Not answered")


def test_nulls_say_why_and_are_never_zero(full):
    table = _part(_pages(full)["results.md"], "### Use of the hardware", "### ")
    lines = [line for line in table.splitlines() if "cpu vllm code" in line]
    assert len(lines) == 2 and all("n/a: no NVML: the device is a CPU" in line for line in lines)


def test_one_session_is_said_not_to_see_the_noise_between_sessions(full, tmp_path):
    said = "could not see the noise between sessions"
    assert all(said in text for text in _pages(full).values())
    two = studies.write(tmp_path, ["cpu_vllm_code_baseline", "cpu_vllm_code_mtp"], sessions=2)
    studies.build(two)
    assert not any(said in text for text in _pages(two).values())


def test_stale_and_missing_cells_are_named_and_answer_nothing(root):
    states = {name: FRESH for name in studies.matrix()}
    states["cpu_vllm_code_mtp"] = {**FRESH, "state": "stale", "differences": ["prompts: 1 changed"]}
    states["cpu_vllm_code_ngram"] = {**FRESH, "state": "missing"}
    studies.build(root, states)
    text = _pages(root)["results.md"]
    assert re.search(r"cpu_vllm_code_mtp.*stale.*prompts: 1 changed", text) and re.search(r"cpu_vllm_code_ngram.*missing", text)
    assert "cpu vllm code mtp" not in _part(text, "## The answer", "## Not answered")
    assert re.search(r"cpu vllm code mtp .{0,3}stale", text)


@pytest.mark.parametrize("names", [[], ["cpu_vllm_code_mtp"], ["cpu_vllm_code_baseline"]])
def test_few_cells_make_a_sensible_page(tmp_path, names):
    studies.write(tmp_path, names)
    studies.build(tmp_path)
    for text in _pages(tmp_path).values():
        assert "No valid comparison to show" in text or "no null cell measured" in text
    audit(tmp_path)


def test_only_invalid_cells_make_a_page_of_reasons(tmp_path):
    studies.write(tmp_path, studies.matrix(prompts=("code",)), studies.invalidate)
    studies.build(tmp_path)
    for text in _pages(tmp_path).values():
        assert "No valid comparison to show" in text and "speculation not active" in text and "#/summary/loads" not in text


def test_five_hundred_cells_stay_small_and_quick(tmp_path):
    """Eight GPUs; the results are copies, since simulating each would take minutes."""
    gpus = ("cpu", "l4", "a10", "l40s", "a100-80gb", "h100", "h200", "b200")
    modes = ["baseline", *(f"mtp-g{gamma}" for gamma in range(1, 11))]
    names = [name for name in studies.matrix(gpus, ("transformers", "vllm"), modes=modes)][:500]
    studies.write(tmp_path, ["cpu_vllm_code_baseline", "cpu_vllm_code_mtp"])
    made = {mode: results.read(results.path_of(f"cpu_vllm_code_{mode}", tmp_path)) for mode in ("baseline", "mtp")}
    shutil.rmtree(tmp_path / "metrics/runs")
    for name in names:
        results.write(results.path_of(name, tmp_path), {**made["mtp" if "mtp" in name else "baseline"], "cell": name})
    started = time.process_time()
    begun = time.perf_counter()
    studies.build(tmp_path)
    taken = time.perf_counter() - begun
    assert (tmp_path / "report/index.html").stat().st_size < 3e6
    print(f"{taken:.1f} s, of which {time.process_time() - started:.1f} s of this process")
    assert taken < 20 or time.process_time() - started < 15, taken  # a machine that others use is slower


def test_the_same_results_make_the_same_bytes(root):
    names = ["report/results.md", "report/index.html", "metrics/plots/speedup.svg", "metrics/plots/curves.svg"]
    before = [(root / name).read_bytes() for name in names]
    studies.build(root)
    assert [(root / name).read_bytes() for name in names] == before


def test_readmes_section_is_written_between_its_markers_only(full):
    text = "\n".join(["# Title", *page.README_MARKERS, "the rest", ""])
    new = page.readme(cells.load(full), text)
    begin, end = (new.index(marker) for marker in page.README_MARKERS)
    assert new.startswith("# Title") and new.endswith("the rest\n") and "cpu vllm code mtp" in new[begin:end]
    assert "](metrics/runs/cpu_vllm_code_mtp/result.json#/summary" in new
    assert page.readme(cells.load(full), new) == new
    with pytest.raises(UserError, match="no results section"):
        page.readme(cells.load(full), "# Title\n")


def test_the_committed_readme_is_up_to_date():
    done = subprocess.run([sys.executable, "scripts/readme.py", "--check"], cwd=studies.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_plot_on_the_page_says_what_the_plot_says():
    """Coordinates are shortened there, and no number that people read."""
    svg = '<svg width="7.2345"><g id="x"><path d="M 1.23456 7.8"/><text>0.001 %</text><text>1.2345×</text></g></svg>'
    shown = plots._adapted(svg, "a title")
    assert ">0.001 %<" in shown and ">1.2345×<" in shown and "M 1.23 7.8" in shown and 'width="7.23"' in shown
