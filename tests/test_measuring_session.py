"""The order of a session and what it records, with an engine that only counts: no model, no torch."""

import json
import re
import sys
import time
import types
from itertools import groupby

import pytest

from mtpbench.measuring import device, engines, session
from mtpbench.measuring.engines.base import COUNTERS, Engine, stop_ids

GAMMA = 4


class Counting(Engine):
    """Gives five ids a prompt: one at the prefill, then two steps of two (test) or four of one (control)."""

    version = "1"
    log: list = []  # (event, method, ...) of all engines of a test
    slower = 1.0  # how much longer the control arm takes
    differs: set = set()  # prompts of which the test arm says another id at index 3
    gap = 0.5

    def __init__(self, request: dict, mode: dict, beside: Engine | None) -> None:
        super().__init__(request, mode)
        self.log.append(("load", mode["method"], beside is not None))
        self.totals = dict.fromkeys(COUNTERS, 0)

    def encode(self, messages):
        return [ord(letter) for letter in messages[0]["content"]]

    def run(self, wave, output_tokens, ignore_eos):
        self.log.append(("run", self.mode["method"], ["".join(map(chr, prompt)) for prompt in wave]))
        test = self.mode["method"] != "none"
        submit = time.perf_counter()
        counts = [1, 2, 2] if test else [1, 1, 1, 1, 1]
        step = 1e-3 if test else 1e-3 * self.slower / 2
        records = []
        for prompt in wave:
            ids = [1, 2, 3, 9 if test and chr(prompt[0]) in self.differs else 4, 5]
            counters = {"drafts": 2, "drafted": 8, "accepted": 2}
            if test:
                self.totals = {name: value + counters[name] for name, value in self.totals.items()}
            records.append({
                "submit": submit, "times": [submit + step * i for i in range(1, len(counts) + 1)], "counts": counts, "ids": ids,
                "finish": "length", "cached_tokens": 0, "offered": [4, 4] if test else None, "accepted": [1, 1] if test else None,
                "counters": counters if test else None,
            })  # fmt: skip
        return records

    def counters(self):
        return dict(self.totals)

    def margin(self, ids, choices):
        self.log.append(("margin", self.mode["method"], ids, choices))
        return self.gap

    def memory(self):
        return {"peak_bytes": 1, "reason": "none"}

    def settings(self):
        return {"counting": True}

    def close(self):
        self.log.append(("close", self.mode["method"]))


@pytest.fixture
def measure(monkeypatch, tmp_path):
    """measure(prompts="abc", mode=..., **protocol): the reply, and what the engines were told in order."""
    torch = types.ModuleType("torch")
    torch.__version__, torch.version, torch.Tensor = "0", types.SimpleNamespace(cuda=None), type("Tensor", (), {})  # scipy looks for it
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(engines, "implementation", lambda name: Counting)
    monkeypatch.setattr(device, "peaks", lambda kind, dtype: {})
    monkeypatch.setattr(session.weights, "constants", lambda *arguments: {})
    monkeypatch.setattr(session.os, "environ", {})
    monkeypatch.setattr(Counting, "slower", 1.0)
    monkeypatch.setattr(Counting, "differs", set())
    (tmp_path / "config.json").write_text("{}")

    def run(prompts="abc", mode=None, options=None, number=0, **protocol):
        monkeypatch.setattr(Counting, "log", [])
        request = {
            "nonce": "n", "fingerprint": "f", "cell": "c", "session": number,
            "spec": {
                "device": {"kind": "cpu", "name": device.cpu_name()}, "engine": {"implementation": "counting", "options": options or {}},
                "model": {"target": {}, "drafter": {}, "dtype": "float32"},
                "mode": mode or {"method": "mtp", "num_speculative_tokens": GAMMA},
                "protocol": {"output_tokens": 5, "ignore_eos": False, "warmup": 0, "concurrency": [1], "order": "interleaved",
                             "rounds": {"min": 1, "max": 1, "half_width": None}, **protocol},
            },
            "prompts": [{"id": letter, "category": "letters", "messages": [{"role": "user", "content": letter}]} for letter in prompts],
            "paths": {"target": str(tmp_path), "drafter": str(tmp_path)},
        }  # fmt: skip
        reply = session.answer(json.dumps(request))
        assert reply["status"] == "ok", reply
        assert json.loads(json.dumps(reply, allow_nan=False)) == reply
        return reply["session"], Counting.log

    return run


def runs(log) -> list[str]:
    """What ran, as "A:ab": A is the control arm, B the test arm, then the prompts of the wave."""
    return [("A" if event[1] == "none" else "B") + ":" + "".join(event[2]) for event in log if event[0] == "run"]


def test_arms_alternate_from_wave_to_wave_and_from_round_to_round(measure):
    found, log = measure(rounds={"min": 2, "max": 2, "half_width": None})
    assert runs(log) == ["A:a", "B:a", "B:b", "A:b", "A:c", "B:c", "B:a", "A:a", "A:b", "B:b", "B:c", "A:c"]
    assert log[:2] == [("load", "none", False), ("load", "mtp", True)]
    keys = [(r["arm"], r["prompt"], r["repeat"], r["wave"]) for r in found["requests"] if r["prompt"] == "b"]
    assert keys == [("test", "b", 0, 1), ("control", "b", 0, 1), ("control", "b", 1, 4), ("test", "b", 1, 4)]


def test_the_arm_that_goes_first_alternates_from_session_to_session(measure):
    """Else one arm would always go first where a load has a single wave."""
    assert [runs(measure("ab", number=number, concurrency=[2])[1]) for number in range(3)] == [["A:ab", "B:ab"], ["B:ab", "A:ab"], ["A:ab", "B:ab"]]


def test_blocks_hold_one_arm_in_memory_at_a_time(measure):
    found, log = measure("ab", order="blocks", rounds={"min": 2, "max": 2, "half_width": None})
    assert runs(log) == ["A:a", "A:b", "B:a", "B:b", "B:a", "B:b", "A:a", "A:b"]
    life = [event[:2] for event in log if event[0] != "run"]
    assert life == [("load", "none"), ("close", "none"), ("load", "mtp"), ("close", "mtp"), ("load", "none"), ("close", "none")]
    assert [w["arm"] for w in found["windows"]] == ["control", "test", "test", "control"]


def test_every_load_point_has_full_waves_and_is_warmed_up(measure):
    found, log = measure("abc", concurrency=[1, 2, 5], warmup=2)
    warm_up = ["a", "b", "ab", "ca", "abcab", "abcab"]
    assert runs(log)[:12] == [f"A:{wave}" for wave in warm_up] + [f"B:{wave}" for wave in warm_up]
    assert runs(log)[12:] == ["A:a", "B:a", "B:b", "A:b", "A:c", "B:c", "A:ab", "B:ab", "B:ca", "A:ca", "A:abcab", "B:abcab"]
    repeats = [(r["prompt"], r["repeat"]) for r in found["requests"] if r["concurrency"] == 5 and r["arm"] == "test"]
    assert repeats == [("a", 0), ("b", 0), ("c", 0), ("a", 1), ("b", 1)]
    assert len(found["requests"]) == 2 * (3 + 4 + 5)


def test_a_warm_up_of_all_prompts_leaves_out_none(measure):
    found, log = measure("abc", concurrency=[1, 2], warmup="all")
    warm_up = ["a", "b", "c", "ab", "ca"]
    assert runs(log)[:10] == [f"A:{wave}" for wave in warm_up] + [f"B:{wave}" for wave in warm_up]
    assert len(found["requests"]) == 2 * (3 + 4)


def test_an_arm_that_is_opened_again_has_met_all_prompts(measure):
    _, log = measure("abc", order="blocks", warmup="all", rounds={"min": 2, "max": 2, "half_width": None})
    assert runs(log) == [*["A:a", "A:b", "A:c"] * 2, *["B:a", "B:b", "B:c"] * 3, "A:a", "A:a", "A:b", "A:c"]


def test_a_window_differs_by_what_was_counted_in_it(measure):
    found, _ = measure("ab", warmup=1, rounds={"min": 2, "max": 2, "half_width": None})
    test = [w for w in found["windows"] if w["arm"] == "test"]
    assert [(w["open"]["counters"]["drafts"], w["close"]["counters"]["drafts"]) for w in test] == [(2, 6), (6, 10)]
    assert all(w["open"]["t"] < w["close"]["t"] for w in found["windows"])


def test_rounds_go_on_until_the_interval_is_narrow(measure, monkeypatch):
    monkeypatch.setattr(Counting, "slower", 1.5)  # the same for every prompt: the interval has no width
    rounds = {"min": 2, "max": 8, "half_width": 0.02}
    assert len(measure(rounds=rounds)[0]["requests"]) == 2 * 2 * 3
    found, _ = measure("a", rounds=rounds)  # one prompt has no interval, so nothing says that it is enough
    assert len(found["requests"]) == 8 * 2


def test_where_outputs_differ_the_margin_is_taken_after_the_common_ids(measure, monkeypatch):
    monkeypatch.setattr(Counting, "differs", {"b"})
    found, log = measure(rounds={"min": 2, "max": 2, "half_width": None})
    assert found["losslessness"] == [{"prompt": "b", "concurrency": 1, "first_difference": 3, "margin": 0.5}]
    assert [event for event in log if event[0] == "margin"] == [("margin", "none", [ord("b"), 1, 2, 3], {4, 9})]


def test_every_place_where_repeats_differ_first_has_its_margin(measure, monkeypatch):
    turns = iter([4, 9, 4, 4, 4, 4, 9, 4])  # what the fourth id is, and then the fifth, from run to run

    def run(self, wave, output_tokens, ignore_eos):
        (record,) = Counting.kept(self, wave, output_tokens, ignore_eos)
        return [record | {"ids": [1, 2, 3, next(turns), next(turns)]}]

    monkeypatch.setattr(Counting, "kept", Counting.run, raising=False)
    monkeypatch.setattr(Counting, "run", run)
    found, _ = measure("a", rounds={"min": 2, "max": 2, "half_width": None})
    assert [(each["first_difference"], each["margin"]) for each in found["losslessness"]] == [(4, 0.5), (3, 0.5)]


def test_another_id_at_the_same_place_has_a_margin_of_its_own(measure, monkeypatch):
    third, asked = iter([4, 7, 4, 9]), []  # by runs: control, test; then test, control of the second round

    def run(self, wave, output_tokens, ignore_eos):
        (record,) = Counting.kept(self, wave, output_tokens, ignore_eos)
        return [record | {"ids": [1, 2, 3, next(third), 5]}]

    monkeypatch.setattr(Counting, "kept", Counting.run, raising=False)
    monkeypatch.setattr(Counting, "run", run)
    monkeypatch.setattr(Counting, "margin", lambda self, ids, choices: asked.append(choices) or 0.1)
    found, _ = measure("a", rounds={"min": 2, "max": 2, "half_width": None})
    assert asked == [{4, 7}, {4, 9}] and [each["first_difference"] for each in found["losslessness"]] == [3, 3]


def test_an_output_that_is_the_beginning_of_the_other_is_no_tie(measure, monkeypatch):
    def run(self, wave, output_tokens, ignore_eos):
        (record,) = Counting.kept(self, wave, output_tokens, ignore_eos)
        cut = self.mode["method"] != "none"
        return [record | {"ids": [1, 2, 3], "counts": [1, 2], "times": record["times"][:2], "accepted": [1], "offered": [4]} if cut else record]

    monkeypatch.setattr(Counting, "kept", Counting.run, raising=False)
    monkeypatch.setattr(Counting, "run", run)
    (difference,) = measure("a")[0]["losslessness"]
    assert (difference["first_difference"], difference["margin"]) == (3, None)


@pytest.mark.parametrize("gap", [float("nan"), float("inf"), None])
def test_a_margin_that_is_no_number_is_not_known(measure, monkeypatch, gap):
    monkeypatch.setattr(Counting, "differs", {"b"})
    monkeypatch.setattr(Counting, "gap", gap)
    assert measure()[0]["losslessness"][0]["margin"] is None


def test_what_was_measured_is_kept_where_a_margin_cannot_be_had(measure, monkeypatch, capsys):
    """Seen with vLLM on a CPU, which compiles for it and found no compiler: the engine was dead then, and so was the session."""
    def dead(self, *_):
        raise RuntimeError("EngineCore is dead\nmore")

    def margin(self, *_):
        monkeypatch.setattr(Counting, "memory", dead)
        dead(self)

    monkeypatch.setattr(Counting, "differs", {"a", "b"})
    monkeypatch.setattr(Counting, "margin", margin)
    found, _ = measure()
    assert [each["margin"] for each in found["losslessness"]] == [None, None] and found["arms"]["test"]["memory"]
    assert "margin | not known: RuntimeError: EngineCore is dead\n" in capsys.readouterr().err


def test_what_was_measured_is_kept_where_the_peaks_cannot_be_seen(measure, monkeypatch, capsys):
    def full(kind, dtype):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    monkeypatch.setattr(device, "peaks", full)
    found, _ = measure()
    assert found["requests"] and found["peaks"] == {"copy_gb_s": None, "matmul_tflops": None, "dtype": "float32"}
    assert "peaks | not measured: CUDA out of memory. Tried to allocate 2 GiB\n" in capsys.readouterr().err


def test_the_telemetry_ends_with_the_session_that_fails(measure, monkeypatch):
    ended = []
    monkeypatch.setattr(device.Cpu, "telemetry", lambda self: ended.append(1))
    monkeypatch.setattr(Counting, "counters", lambda self: 1 / 0)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        measure()
    assert ended == [1]


def test_threads_are_counted_after_binding_to_cores(measure, monkeypatch):
    usable = {0, 1}
    monkeypatch.setattr(session.os, "sched_getaffinity", lambda _: set(usable))
    monkeypatch.setattr(session.os, "sched_setaffinity", lambda _, cores: usable.intersection_update(cores))
    for _ in range(2):  # the second session of a process finds the same CPU
        found, _ = measure(options={"cores": 1})
        assert found["settings"]["environment"]["OMP_NUM_THREADS"] == "1"


def test_drawn_acceptance_has_no_margin(measure, monkeypatch):
    monkeypatch.setattr(Counting, "differs", {"b"})
    mode = {"method": "mtp", "num_speculative_tokens": 4, "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}
    found, _ = measure(mode=mode)
    assert found["losslessness"][0]["margin"] is None and found["model"]["synthetic_acceptance"] is True


def test_times_are_seconds_since_the_session_began(measure):
    found, _ = measure(number=3)
    assert all(0 <= r["submit"] < r["times"][0] <= r["times"][-1] <= found["seconds"]["total"] + 0.01 for r in found["requests"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["started_at"]) and found["index"] == 3


def test_the_environment_of_the_engine_is_set_and_recorded(measure):
    found, _ = measure(options={"environment": {"VLLM_USE_FLASHINFER_SAMPLER": "0"}})
    environment = found["settings"]["environment"]
    assert environment.items() <= session.os.environ.items()
    assert environment["HF_HUB_OFFLINE"] == environment["DO_NOT_TRACK"] == "1" and environment["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert environment["OMP_NUM_THREADS"] == str(device.physical_cores())


def test_progress_is_one_format(measure, monkeypatch, capsys):
    monkeypatch.setattr(session.Progress, "EVERY_S", 0.0)
    measure("ab", rounds={"min": 2, "max": 2, "half_width": None}, warmup=1)
    lines = capsys.readouterr().err.splitlines()
    phases = [phase for phase, _ in groupby(line.split(" | ")[0] for line in lines)]
    names = ["device", "load control", "warm-up", "load test", "warm-up", "measure", "done"]
    assert phases == [f"[mtpbench] {name}" for name in names]
    measured = [line for line in lines if "measure" in line]
    assert measured[0] == "[mtpbench] measure | prompt 1 of 2 | round 1 | time left --:--" and len(measured) == 8
    assert all(re.search(r" \| prompt [12] of 2 \| round [12] \| time left \d\d:\d\d$", line) for line in measured[1:])


def test_an_engine_that_fails_is_one_line(measure, monkeypatch, capsys):
    def fail(*_):
        raise ValueError("first line\nsecond line")

    monkeypatch.setattr(Counting, "run", fail)
    with pytest.raises(AssertionError) as failed:
        measure()
    assert "'kind': 'engine', 'message': 'ValueError: first line'" in str(failed.value)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config.json": {"eos_token_id": [106, 1]}, "config.json": {"eos_token_id": 2}}, [1, 106]),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 1}}, [1]),
        ({"config.json": {"eos_token_id": 0}}, [0]),
        ({"config.json": {}}, []),
    ],
)
def test_stop_ids_are_those_of_the_generation_config(tmp_path, files, ids):
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert stop_ids(tmp_path) == ids
