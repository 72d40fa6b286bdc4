"""`snakemake cost` on small configurations: from the estimate, from results, and where something is not known."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtpbench import config, cost, results, spec

ROOT = Path(__file__).parents[1]
HOUR = 3600.0


@pytest.fixture
def root(tmp_path):
    for name in ("config", "envs", "prompts", "models"):
        if (ROOT / name).exists():
            (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def settings(**gpu) -> dict:
    """One cell on an H100 with the small locks of the download, so that no engine's lock is needed."""
    found = config.load(ROOT / "config" / "config.yaml")
    found["matrix"] |= {"gpus": ["h100"], "engines": ["vllm"], "prompts": ["code"], "modes": ["mtp"], "extra": []}
    found["engines"]["vllm"]["requirements"]["cuda"] = ["envs/weights.txt"]
    found["gpus"]["h100"] |= gpu
    return found


def measured(cell: str, given: dict, root: Path, seconds: list[float], fresh: bool, valid: bool = True) -> None:
    """A result with sessions of these lengths, which answers the current spec or an older one."""
    planned = spec.Specs(given, root).resolve(cell)
    result = {
        "schema_version": results.SCHEMA_VERSION,
        "cell": cell,
        "fingerprint": results.digest(planned) if fresh else "0" * 64,
        "spec": planned,
        "summary": {"valid": valid},
        "sessions": [{"index": index, "seconds": {"total": each}} for index, each in enumerate(seconds)],
    }
    results.write(results.path_of(cell, root), result)


def test_the_estimate_counts_both_arms_warm_up_and_rounds(root):
    given = settings(estimate={"start_minutes": 5, "vllm": 100})
    given["protocol"] |= {"prompts": 30, "output_tokens": 100, "warmup": 0, "rounds": {"min": 1, "max": 4}, "sessions": 2}
    (found,) = cost.costs(given, root)
    assert found.state == "missing" and found.sessions == 2
    assert found.minutes == (2 * (5 + 1), 2 * (5 + 4))  # 30 prompts of 1 s, two arms: a minute a round
    price = cost.usd_per_hour(given["gpus"]["h100"], given["modal"])
    assert found.usd == pytest.approx((12 / 60 * price, 18 / 60 * price))


def test_a_load_point_is_counted_by_its_waves(root):
    given = settings(estimate={"start_minutes": 1, "vllm": 100})
    given["protocol"] |= {"prompts": 30, "output_tokens": 100, "warmup": 0, "rounds": {"min": 1, "max": 1}, "concurrency": [1, 8]}
    (found,) = cost.costs(given, root)
    assert found.minutes[1] == pytest.approx(1 + 2 * (30 + 4) / 60)


def test_a_warm_up_of_all_prompts_counts_as_a_round(root):
    given = settings(estimate={"start_minutes": 1, "vllm": 100})
    given["protocol"] |= {"prompts": 30, "output_tokens": 100, "warmup": "all", "rounds": {"min": 1, "max": 1}, "concurrency": [1, 8]}
    (found,) = cost.costs(given, root)
    assert found.minutes[1] == pytest.approx(1 + 2 * 2 * (30 + 4) / 60)


@pytest.mark.parametrize(("warmup", "waves"), [("all", 30 + 1.5 * 1), (2, 2.5 * 2)])
def test_an_arm_that_is_opened_again_is_warmed_up_again(root, warmup, waves):
    """Four rounds in blocks: A B, B A, A B, B A are five openings of two arms."""
    given = settings(estimate={"start_minutes": 1, "vllm": 100})
    given["protocol"] |= {"prompts": 30, "output_tokens": 100, "warmup": warmup, "rounds": {"min": 4, "max": 4}, "order": "blocks"}
    (found,) = cost.costs(given, root)
    assert found.minutes[1] == pytest.approx(1 + 2 * (4 * 30 + waves) / 60)


def test_the_price_is_the_gpu_and_what_is_reserved_beside_it():
    gpu = {"backend": "modal", "price": {"usd_per_hour": 4.0}}
    beside = {"cpu": 4, "memory_gib": 10, "price_core": {"usd_per_hour": 0.05}, "price_gib": {"usd_per_hour": 0.01}}
    assert cost.usd_per_hour(gpu, beside) == pytest.approx(4.3)
    assert cost.usd_per_hour({**gpu, "price": {"usd_per_hour": None}}, beside) is None
    assert cost.usd_per_hour({"backend": "modal"}, beside) is None
    assert cost.usd_per_hour({"backend": "local"}, beside) == 0


def test_a_result_says_better_than_the_estimate(root):
    given = settings()
    given["matrix"]["modes"] = ["baseline", "mtp", "ngram"]
    measured("h100_vllm_code_mtp", given, root, [600.0, 660.0], fresh=False)
    measured("h100_vllm_code_baseline", given, root, [300.0], fresh=True)
    found = {each.cell: each for each in cost.costs(given, root)}
    assert set(found) == {"h100_vllm_code_mtp", "h100_vllm_code_ngram"}  # the fresh one costs nothing
    assert (found["h100_vllm_code_mtp"].state, found["h100_vllm_code_mtp"].basis) == ("stale", "its last result")
    assert found["h100_vllm_code_mtp"].minutes == (10, 11)
    assert found["h100_vllm_code_ngram"].minutes == (5, 11)


@pytest.mark.parametrize(
    ("change", "times"),
    [({"output_tokens": 4}, 1), ({"output_tokens": 384}, 3), ({"prompts": 30}, 2), ({"rounds": {"min": 1, "max": 5}}, 5), ({"concurrency": [1, 3]}, 4 / 3)],
)
def test_a_protocol_that_asks_for_more_costs_more(root, change, times):
    given = settings()
    given["protocol"] |= {"prompts": 15, "output_tokens": 128, "warmup": 0, "rounds": {"min": 1, "max": 1, "half_width": None}}
    measured("h100_vllm_code_mtp", given, root, [600.0], fresh=False)
    given["protocol"] |= change
    (found,) = cost.costs(given, root)
    assert found.minutes == pytest.approx((10 * times, 10 * times))


@pytest.mark.parametrize("valid, to_measure", [(True, 1), (False, 3)])
def test_more_sessions_cost_the_new_ones_only(root, valid, to_measure):
    given = settings()
    given["protocol"]["sessions"] = 2
    measured("h100_vllm_code_mtp", given, root, [600.0, 660.0], fresh=True, valid=valid)
    given["protocol"]["sessions"] = 3
    (found,) = cost.costs(given, root)
    assert (found.state, found.sessions, found.minutes) == ("stale", to_measure, (10 * to_measure, 11 * to_measure))


def test_what_is_not_known_is_said(root):
    (found,) = cost.costs(settings(price={"usd_per_hour": None, "date": None, "source": None}), root)
    assert found.minutes and found.usd is None
    given = settings()
    del given["gpus"]["h100"]["estimate"]
    (found,) = cost.costs(given, root)
    assert found.minutes is None and found.usd is None and found.basis == "no estimate configured"
    given["engines"]["vllm"]["requirements"]["cuda"] = ["envs/absent.txt"]
    (found,) = cost.costs(given, root)
    assert found.state == "blocked" and "envs/absent.txt" in found.warning


def test_a_pair_too_large_and_a_session_too_long_are_warned_of(root):
    (found,) = cost.costs(settings(memory_gb=8), root)
    assert "choose a larger GPU" in found.warning
    given = settings(estimate={"start_minutes": 5, "vllm": 1})
    (found,) = cost.costs(given, root)
    assert "modal.run_s (120 minutes)" in found.warning


def test_this_machine_costs_nothing(root):
    given = settings(backend="local")
    (found,) = cost.costs(given, root)
    assert found.usd == (0, 0)


@pytest.mark.workflow
def test_the_rule_prints_a_table_without_token_and_network(root):
    for name in ("Snakefile", "rules", "scripts", "profiles", "report"):
        if (ROOT / name).exists():
            (root / name).symlink_to(ROOT / name)
    (root / "config.json").write_text(json.dumps(settings()))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "HF_"))}
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "cost", "-c1", "--configfile", "config.json"],
        cwd=root, env={**kept, "COLUMNS": "120"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "h100_vllm_code_mtp" in done.stdout and "missing" in done.stdout and "the configured estimate" in done.stdout
    assert "3.9492 USD an hour by the list of" in done.stdout
