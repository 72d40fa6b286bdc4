"""Result files: whole or refused, and never lost while their successor is written."""

import json
import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtpbench import results
from mtpbench.errors import UserError

FINGERPRINT = "ab" * 32
RESULT = {
    "schema_version": results.SCHEMA_VERSION, "cell": "cpu_vllm_code_mtp", "fingerprint": FINGERPRINT,
    "spec": {"mode": {"method": "mtp"}}, "sessions": [{"requests": [{"times": [0.1, 0.25], "ids": [5, 6, 7], "text": "[ 1,\n 2 ]"}]}],
}  # fmt: skip

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "metrics" / "runs" / "cpu_vllm_code_mtp" / "result.json"
    results.write(path, RESULT)
    return path


def test_a_written_result_reads_back_and_tells_its_fingerprint(written):
    assert results.read(written) == results.seal(RESULT)
    assert results.recorded(written) == FINGERPRINT
    assert list(results.read(written))[-1] == "checksum"


def test_a_result_cut_at_any_byte_answers_nothing_and_is_named(written):
    whole = written.read_bytes()
    for length in range(len(whole) - 1):
        written.write_bytes(whole[:length])
        assert results.recorded(written) is None, length
        with pytest.raises(UserError, match="result.json.*git checkout"):
            results.read(written)


def test_any_changed_digit_is_found(written):
    whole = written.read_text()
    for place, letter in enumerate(whole):
        if letter.isdigit():
            written.write_text(whole[:place] + str((int(letter) + 1) % 10) + whole[place + 1 :])
            with pytest.raises(UserError, match="checksum|schema version"):
                results.read(written)


@pytest.mark.parametrize(("version", "remedy"), [(0, "commit in its provenance"), (results.SCHEMA_VERSION + 1, "update this checkout")])
def test_another_schema_version_is_refused_with_the_remedy(written, version, remedy):
    results.write(written, {**RESULT, "schema_version": version})
    with pytest.raises(UserError, match=remedy):
        results.read(written)


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", "{\"schema_version\": \"x\"}", "\x00"])
def test_what_is_no_result_is_refused_in_one_line(written, content):
    written.write_text(content)
    with pytest.raises(UserError) as caught:
        results.read(written)
    assert "\n" not in str(caught.value)


def test_a_failed_write_keeps_the_old_result_and_leaves_no_part(written, monkeypatch):
    before = written.read_bytes()

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        results.write(written, {**RESULT, "cell": "other"})
    assert written.read_bytes() == before
    assert [file.name for file in written.parent.iterdir()] == ["result.json"]


def test_what_a_killed_writer_left_is_cleared_away(written):
    (written.parent / ".result.json.123.part").write_text("{")
    results.write(written, RESULT)
    assert [file.name for file in written.parent.iterdir()] == ["result.json"]


def test_numbers_that_are_no_json_are_never_written(tmp_path):
    with pytest.raises(ValueError):
        results.write(tmp_path / "result.json", {**RESULT, "sessions": [float("nan")]})
    assert not list(tmp_path.iterdir())


@settings(max_examples=200, deadline=None)
@given(json_values)
def test_the_readable_form_holds_exactly_the_value(value):
    assert json.loads(results.text_of(value)) == value


def test_a_list_of_numbers_stands_on_one_line():
    assert results.text_of({"ids": [1, 2, 3]}) == '{\n "ids": [1, 2, 3]\n}\n'


@pytest.mark.parametrize("damage", [{"schema_version": 0}, {"schema_version": None}, {"cell": "another"}])
def test_what_is_said_of_a_file_that_cannot_be_used_names_it_and_a_command(tmp_path, damage):
    path = tmp_path / "result.json"
    results.write(path, {"schema_version": results.SCHEMA_VERSION, "cell": "one"})
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    with pytest.raises(UserError, match=re.escape(f"measure it again with `snakemake -c1 -f '{path}'`")):
        results.read(path)
