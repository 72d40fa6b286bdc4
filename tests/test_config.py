"""The configuration: one clear line for every mistake, and nothing lost of what is right."""

import copy
import datetime

import pytest
import yaml

from mtpbench import config as configuration
from mtpbench.errors import UserError


@pytest.fixture
def raw():
    return yaml.safe_load(configuration.DEFAULT.read_text())


def _without(mapping, key):
    del mapping[key]


MISTAKES = {
    "top-level key": (lambda c: c.update(protocl={}), "unknown key 'protocl'; did you mean 'protocol'?"),
    "nested key": (lambda c: c["protocol"].update(roundz=1), "protocol: unknown key 'roundz'; did you mean 'rounds'?"),
    "value": (lambda c: c["gpus"]["cpu"].update(backend="modall"), "gpus.cpu.backend: 'modall' is not valid; did you mean 'modal'?"),
    "unknown gpu": (lambda c: c["matrix"].update(gpus=["cpuu"]), "matrix.gpus: no gpus.cpuu; did you mean 'cpu'?"),
    "name": (lambda c: c["gpus"].update(H100={}), "gpus: 'H100' is not a valid name"),
    "missing key": (lambda c: _without(c["gpus"]["cpu"], "model"), "gpus.cpu: 'model' is a required property"),
    "unknown model": (lambda c: c["gpus"]["cpu"].update(model="smal"), "gpus.cpu.model: no models.smal; did you mean 'small'?"),
    "weights": (lambda c: c["models"]["small"].update(target={"pth": "x"}), "models.small.target: {'pth': 'x'} is not a folder {path}"),
    "type": (lambda c: c["modes"]["mtp"].update(num_speculative_tokens="4"), "modes.mtp.num_speculative_tokens: '4' is not of type 'integer'"),
    "gamma": (lambda c: _without(c["modes"]["mtp"], "num_speculative_tokens"), "modes.mtp: 'num_speculative_tokens' is a required property"),
    "extra cell": (lambda c: c["matrix"].update(extra=["cpu_vlm_code_mtp"]), "no engines.vlm in the configuration; did you mean 'vllm'?"),
    "an engine's override": (lambda c: c["gpus"]["cpu"]["engines"].update(transfomers={}), "gpus.cpu.engines: no engines.transfomers; did you mean 'transformers'?"),
    "rounds": (lambda c: c["protocol"].update(rounds={"min": 4, "max": 2}), "engines.transformers and modes.baseline: min 4 is more than max 2"),
    "a GPU's rounds": (lambda c: c["gpus"]["cpu"]["protocol"].update(rounds={"min": 9}), "gpus.cpu with engines.transformers and modes.baseline: min 9 is more than max 8"),
    "a mode's rounds": (lambda c: c["modes"]["mtp"].update(protocol={"rounds": {"min": 9}}), "and modes.mtp: min 9 is more than max 2"),
    "no integer": (lambda c: c["modes"]["mtp"].update(protocol={"sessions": 2.0}), "modes.mtp.protocol.sessions: 2.0 is not of type 'integer'"),
    "a mode's protocol": (lambda c: c["modes"]["mtp"].update(protocol={"sesions": 2}), "modes.mtp.protocol: unknown key 'sesions'; did you mean 'sessions'?"),
    "a mode with more sessions than its null cell": (
        lambda c: c["modes"]["mtp"].update(protocol={"sessions": 3}), "gpus.cpu.engines.transformers.null_protocol.sessions: null cells with gpus.cpu and engines.transformers have 1, fewer than the 3 of modes.mtp",
    ),
    "a name that is a number": (lambda c: c["modes"].update({4: {"method": "none"}}), "modes: the name 4 is read as a int; put it in quotes"),
    "a name that is a truth value": (lambda c: c["gpus"]["cpu"]["engines"].update({True: {}}), "gpus.cpu.engines: the name True is read as a bool"),
    "no number": (lambda c: c["protocol"].update(rounds={"half_width": float("nan")}), "protocol.rounds.half_width: nan is no number"),
    "no end": (lambda c: c["gpus"]["cpu"].update(memory_gb=float("inf")), "gpus.cpu.memory_gb: inf is no number"),
    "a date": (lambda c: c["engines"]["vllm"].update(options={"x": [datetime.date(2026, 1, 1)]}), "engines.vllm.options.x.0: 2026-01-01 is read as a date"),
    "a variable that is no text": (
        lambda c: c["engines"]["vllm"].update(options={"environment": {"OMP_NUM_THREADS": 1}}), "options.environment.OMP_NUM_THREADS: 1 is not of type 'string'",
    ),
    "endless": (lambda c: c["protocol"].update(sessions=10**11), "protocol.sessions: 100000000000 is greater than the maximum of 1000"),
    "Modal without a request": (lambda c: _without(c["gpus"]["l4"], "request"), "gpus.l4: 'request' is a required property"),
    "a CPU of Modal": (lambda c: c["gpus"]["cpu"].update(backend="modal", request="L4"), "gpus.cpu.device: 'cuda' was expected"),
    "empty section": (lambda c: c.update(gpus=None), "gpus: None is not of type 'object'"),
    "no section": (lambda c: c["gpus"]["cpu"].update(engines=None), "gpus.cpu.engines: None is not of type 'object'"),
    "a list of engines": (lambda c: c["gpus"]["cpu"].update(engines=["vllm"]), "gpus.cpu.engines: ['vllm'] is not of type 'object'"),
    "another name for the baseline": (lambda c: c["modes"].update(base=c["modes"].pop("baseline")), "modes: 'baseline' is a required property"),
    "a baseline that drafts": (lambda c: c["modes"].update(baseline=c["modes"]["mtp"]), "modes.baseline.method: 'none' was expected"),
    "a wrong name after right ones": (lambda c: c["modes"].update(n_gram=c["modes"]["mtp"]), "modes: 'n_gram' is not a valid name"),
    "percent": (lambda c: c["protocol"].update(rounds={"half_width": 2}), "protocol.rounds.half_width: 2 is greater than the maximum of 1"),
    "one id": (lambda c: c["modes"]["mtp"].update(protocol={"output_tokens": 1}), "modes.mtp.protocol.output_tokens: 1 is less than the minimum of 2"),
    "a baseline with a protocol of its own": (
        lambda c: c["modes"]["baseline"].update(protocol={"sessions": 2}),
        "modes.baseline.protocol.sessions: null cells with gpus.h200 and engines.vllm021 have 2, fewer than the 4 of modes.mtp, which would have no floor; set it to 4 or more",
    ),
    "empty file": (lambda c: c.clear(), "'matrix' is a required property"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_place_and_remedy(raw, mistake):
    spoil, said = MISTAKES[mistake]
    spoil(raw)
    with pytest.raises(UserError) as caught:
        configuration.validate(raw)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("config/config.yaml: ")


def test_defaults_are_filled_in_and_the_argument_is_left_alone(raw):
    before = copy.deepcopy(raw)
    filled = configuration.validate(raw)
    assert raw == before
    assert filled["protocol"]["order"] == "interleaved" and filled["matrix"]["extra"] == []
    assert filled["partial"] is False and filled["modal"]["volume"]
    assert configuration.validate(filled) == filled


def test_every_default_cell_resolves_to_four_names():
    config = configuration.load()
    cells = configuration.cells(config)
    assert len(cells) == len(set(cells)) == 12
    assert configuration.parts("cpu_vllm_code_mtp", config) == {"gpu": "cpu", "engine": "vllm", "prompts": "code", "mode": "mtp"}


@pytest.mark.parametrize("cell", ["cpu_vllm_code", "cpu_vllm_code_mtp_x", "", "cpu_vllm_code_", "h1000_vllm_code_mtp"])
def test_an_unknown_cell_is_named_with_a_hint(cell):
    with pytest.raises(UserError, match="unknown cell"):
        configuration.parts(cell, configuration.load())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "config.yaml: holds no mapping"), ("[1]", "config.yaml: holds no mapping"), ("x", "config.yaml: holds no mapping"),
        (b"a: \xe4", "config.yaml: not UTF-8 text"), ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "config.yaml:5: the key 'c' stands twice, first in line 3"),
        ("a: [{b: 1, b: 2}]", "config.yaml:1: the key 'b' stands twice"), ("{{name}}: 1", "config.yaml:1: not valid YAML"),
        ("a: &a {b: *a}", "config.yaml:1: an anchor that refers to itself"), ("a: &a {x: 1}\nb: {<<: *a, x: 2}\nc: {y: *a, z: *a}", "config.yaml: top level: unknown key"),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_configuration_is_named(tmp_path, text, said):
    path = tmp_path / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as caught:
        configuration.load(path)
    assert said in str(caught.value)


def test_yaml_that_does_not_parse_names_the_line(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("matrix:\n  gpus: [cpu\nengines: x\n")
    with pytest.raises(UserError, match=r"config.yaml:3: not valid YAML"):
        configuration.load(file)


@pytest.mark.parametrize(
    ("protocol", "null", "said"),
    [
        ({"sessions": 3}, {"sessions": 2}, "gpus.cpu.engines.vllm.null_protocol.sessions: .* have 2, fewer than the 3 of modes"),
        ({"rounds": {"min": 2, "max": 8}}, {"rounds": {"min": 1}}, "null_protocol.rounds.min: .* have 1, fewer than the 2 of modes"),
        ({"output_tokens": 32}, {"output_tokens": 33}, "null_protocol.output_tokens: .* have 33, more than the 32 of modes.mtp, .*; set it to 32 or fewer"),
        ({"rounds": {"min": 2, "max": 2}}, {"rounds": {"min": 4}}, r"\(null_protocol among them\).*min 4 is more than max 2"),
    ],
)
def test_a_null_cell_is_not_sampled_less_than_the_cells_that_it_serves(raw, protocol, null, said):
    raw["gpus"]["cpu"]["engines"]["vllm"] |= {"protocol": protocol, "null_protocol": null}
    with pytest.raises(UserError, match=said):
        configuration.validate(raw)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["modes"]["mtp"].update(protocol={"rounds": {"min": 2, "max": 6}}),  # other GPUs have a null_protocol, of sessions alone
        lambda c: c["modes"].update(long={"method": "mtp", "num_speculative_tokens": 4, "protocol": {"sessions": 99}}),  # for another GPU than those with a null_protocol
        lambda c: (c["matrix"].update(modes=["mtp"]), c["modes"]["mtp"].update(protocol={"sessions": 3})),  # no null cell is wanted
    ],
)
def test_what_lacks_no_floor_is_not_refused(raw, change):
    change(raw)
    configuration.validate(raw)


@pytest.mark.parametrize("warmup", ["al", -1, 2.5, True, None])
def test_a_warm_up_is_a_number_of_waves_or_all(raw, warmup):
    raw["protocol"]["warmup"] = warmup
    with pytest.raises(UserError, match="protocol.warmup: .* is not a number of waves, or all: every prompt once"):
        configuration.validate(raw)
    raw["protocol"]["warmup"] = "all"
    configuration.validate(raw)


def test_null_cells_may_have_sessions_of_their_own(raw):
    raw["gpus"]["cpu"]["engines"]["vllm"]["null_protocol"] = {"sessions": 12}
    config = configuration.validate(raw)
    of = lambda engine, mode: configuration.engine_on({"gpu": "cpu", "engine": engine, "mode": mode}, config)["protocol"]["sessions"]  # noqa: E731
    assert of("vllm", "baseline") == 12 and of("vllm", "mtp") == of("transformers", "baseline") == config["protocol"]["sessions"]
