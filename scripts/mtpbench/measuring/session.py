"""One session: the device first, then both arms, warmed up and measured in turns; everything goes into one record."""

import contextlib
import datetime
import gc
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import time
import traceback
from collections import Counter
from pathlib import Path

from mtpbench.measuring import Refused, device, engines, weights
from mtpbench.measuring.progress import Progress

ARMS = ("control", "test")
# The session sets these for itself and for the engine's processes: nothing is fetched from or reported to anywhere.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}


def answer(request_json: str | bytes, kind: type["Session"] | None = None) -> dict:
    """The reply (docs/architecture.md) to a request. Any error becomes an error reply; a traceback goes to stderr only."""
    request: dict = {}
    try:
        request = _parsed(request_json)
        _check(request)
        reply = {"status": "ok", "session": (kind or Session)(request).measured()}
    except Refused as error:
        reply = {"status": "error", "error": {"kind": error.kind, "message": str(error), "tail": ""}}
    except Exception as error:
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or [""])[0]
        message = f"{type(error).__name__}: {first_line}"
        reply = {"status": "error", "error": {"kind": "engine", "message": message, "tail": ""}}
    return {"nonce": request.get("nonce"), "fingerprint": request.get("fingerprint"), **reply}


def _parsed(request_json: str | bytes) -> dict:
    try:
        request = json.loads(request_json)
    except ValueError as error:
        raise Refused("request", f"the request is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise Refused("request", "the request is not a JSON object")
    return request


def _check(request: dict) -> None:
    """What a session reads must be there before anything is loaded. Raises Refused("request")."""
    try:
        spec, paths = request["spec"], request["paths"]
        method, _ = spec["mode"]["method"], spec["model"]["dtype"]
        parts = ("target", "drafter") if method == "mtp" else ("target",)
        missing = [f"{part}: {paths[part]}" for part in parts if not (Path(paths[part]) / "config.json").is_file()]
        complete = bool(request["prompts"]) and all(spec["protocol"][key] for key in ("output_tokens", "rounds", "concurrency"))
    except (KeyError, TypeError) as error:
        raise Refused("request", f"the request is not as docs/architecture.md has it: {type(error).__name__} {error}") from error
    if missing:
        raise Refused("request", f"no model folder {'; '.join(missing)}")
    if not complete:
        raise Refused("request", "the request has no prompts, output tokens, rounds or concurrency")


class Session:
    """Measures a request whose form was checked. Times in its records are seconds since the session began."""

    def __init__(self, request: dict) -> None:
        self.request, self.spec = request, request["spec"]
        self.protocol = self.spec["protocol"]
        self.modes = {"control": {"method": "none"}, "test": self.spec["mode"]}
        self.began, self.started_at = time.perf_counter(), datetime.datetime.now(datetime.UTC)
        self.progress = Progress()
        self.open: dict[str, engines.Engine] = {}
        self.arms: dict[str, dict] = {}
        self.settings: dict = {"gc": "heap frozen after loading; collected before and off during each wave"}
        self.seconds = {"load": 0.0, "warmup": 0.0, "measure": 0.0}
        self.prompts: dict[str, list[int]] = {}
        self.requests: list[dict] = []
        self.windows: list[dict] = []
        self.repeats: Counter = Counter()
        self.waves_done = 0

    def clock(self) -> float:
        return time.perf_counter() - self.began

    def measured(self) -> dict:
        """The session record of docs/architecture.md. Raises Refused, or whatever the engine raises."""
        self.progress.say("device")
        found = device.verified(self.spec["device"])
        self._set_environment()
        facts, settled = found.facts(), self._stopping_rule()
        with self._timed("load"):
            self.implementation = engines.implementation(self.spec["engine"]["implementation"])
        self.import_s = self.seconds["load"]
        self._engine("control")
        found.start_telemetry(self.clock)
        try:
            self._measure(settled)
        finally:  # or it would go on beside the sessions that follow in this process
            telemetry = found.telemetry()
        self._see_memory()
        losslessness = self._differences()
        self._close()
        self.progress.say("done")
        return {
            "index": self.request["session"],
            "started_at": self.started_at.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "device": facts,
            "software": self._software(),
            "categories": {prompt["id"]: prompt["category"] for prompt in self.request["prompts"]},
            "settings": self.settings,
            "model": self._model(),
            "arms": self.arms,
            "windows": self.windows,
            "requests": self.requests,
            "losslessness": losslessness,
            "telemetry": telemetry,
            "peaks": self._peaks(found.kind),
            "seconds": {name: round(value, 3) for name, value in {**self.seconds, "total": self.clock()}.items()},
        }

    def _set_environment(self) -> None:
        """Everything that the engine reads from the environment; engine.options.environment is part of the spec."""
        if cores := self.spec["engine"]["options"].get("cores"):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # before the engine starts threads and processes
        own = dict(ENVIRONMENT)
        if self.spec["device"]["kind"] == "cpu":
            # A thread that waits by spinning makes every step wait for the scheduler wherever the threads share a core: with
            # another process, or on a virtual machine that leaves them together. Seen here: steps 4 to 7 times slower.
            own |= {"OMP_NUM_THREADS": str(device.physical_cores()), "OMP_WAIT_POLICY": "PASSIVE"}
            own["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        else:
            # It would be compiled on its first use, by an nvcc that a container need not have; greedy decoding does without.
            own["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        own |= self.spec["engine"]["options"].get("environment", {})
        os.environ.update(own)
        self.settings["environment"] = own

    def _stopping_rule(self):
        """A function that tells whether a load point needs no further round; imported early, since scipy may be missing."""
        rounds = self.protocol["rounds"]
        if rounds["half_width"] is None or rounds["min"] == rounds["max"]:
            return lambda load: False
        try:
            from mtpbench.analysis import effect
        except ImportError as error:
            raise Refused("request", f"rounds.half_width needs numpy and scipy in the engine's environment: {error}") from error

        def settled(load: int) -> bool:
            speedup = effect.at_load([self.requests], load)
            return bool(speedup) and speedup["half_width"] is not None and speedup["half_width"] < rounds["half_width"]

        return settled

    def _engine(self, arm: str) -> engines.Engine:
        """The arm's engine, loaded and warmed up when it is not open; in blocks only one arm is open at a time."""
        if arm in self.open:
            return self.open[arm]
        if self.protocol["order"] == "blocks":
            self._see_memory()
            self._close()
        self.progress.say(f"load {arm}")
        beside = next(iter(self.open.values()), None)
        began = self.clock()
        with self._timed("load"):
            engine = self.open[arm] = self._made(arm, beside)
        gc.freeze()
        # What a user who wanted this arm alone would wait for: the imports and shared weights count for both arms.
        own_s = self.import_s + engine.borrowed_s + self.clock() - began
        again = arm in self.arms
        self.arms.setdefault(arm, {"load_s": round(own_s, 3)})
        self.settings[arm] = engine.settings()
        if not self.prompts:
            self.prompts = {prompt["id"]: engine.encode(prompt["messages"]) for prompt in self.request["prompts"]}
        self.progress.say("warm-up", arm)
        with self._timed("warmup"):
            self._warm_up(engine, again)
        return engine

    def _made(self, arm: str, beside: engines.Engine | None) -> engines.Engine:
        return self.implementation(self.request, self.modes[arm], beside)

    def _warm_up(self, engine: engines.Engine, again: bool) -> None:
        for load in self.protocol["concurrency"]:
            for wave in self._unmeasured(load, again):
                self._run(engine, wave)

    def _unmeasured(self, load: int, again: bool) -> list[list[str]]:
        """The waves of a warm-up. again: of an arm that this process had open before, so that it has met all prompts."""
        waves, count = self._waves(load), self.protocol["warmup"]
        if count == "all":
            return waves[:1] if again else waves
        return (waves * count)[:count]

    def _given_back(self, engine: engines.Engine) -> None:
        engine.close()

    def _see_memory(self) -> None:
        for arm, engine in self.open.items():
            self.arms[arm]["memory"] = engine.memory()

    def _close(self) -> None:
        for engine in self.open.values():
            self._given_back(engine)
        self.open.clear()
        gc.unfreeze()
        gc.collect()

    def _waves(self, load: int) -> list[list[str]]:
        """The prompts in groups of `load`, each full: the last is filled up from the first prompts again."""
        ids = list(self.prompts)
        count = -(-len(ids) // load)
        endless = ids * (load * count // len(ids) + 1)
        return [endless[start : start + load] for start in range(0, load * count, load)]

    def _measure(self, settled) -> None:
        rounds, loads = self.protocol["rounds"], list(self.protocol["concurrency"])
        for round_ in range(rounds["max"]):
            to_do = sum(len(self._waves(load)) for load in loads) * len(ARMS) * max(1, rounds["min"] - round_)
            for load, turn in self._turns(round_, loads):
                self._turn(round_, load, turn, to_do)
                to_do -= len(turn)
            if round_ + 1 >= rounds["min"]:
                loads = [load for load in loads if not settled(load)]

    def _turns(self, round_: int, loads: list[int]):
        """What a round runs, in turns: (load, [(arm, wave number, prompts)]).

        Interleaved: each wave by one arm and then by the other, and the arm that goes first alternates from wave to
        wave, from round to round and from session to session. Blocks: all by one arm, then all by the other: A B, then B A.
        """
        if self.protocol["order"] == "blocks":
            for arm in _in_order(round_):
                for load in loads:
                    yield load, [(arm, number, wave) for number, wave in enumerate(self._waves(load))]
        else:
            turn = round_ + self.request["session"]
            for load in loads:
                waves = enumerate(self._waves(load))
                yield load, [(arm, number, wave) for number, wave in waves for arm in _in_order(turn + number)]

    def _turn(self, round_: int, load: int, turn: list[tuple[str, int, list[str]]], to_do: int) -> None:
        """Measure one turn, with a window for each of its arms. to_do: waves from here to the end, as far as planned."""
        arms = {arm: self._engine(arm) for arm in sorted({arm for arm, _, _ in turn})}
        opened = {arm: {"t": self.clock(), "counters": engine.counters()} for arm, engine in arms.items()}
        began, waves, before = self.clock(), len(self._waves(load)), self.seconds["measure"]
        for done, (arm, number, wave) in enumerate(turn):
            a_wave = (before + self.clock() - began) / (self.waves_done + done) if self.waves_done + done else None
            left = a_wave and a_wave * (to_do - done)
            self.progress.wave(number * load + 1, len(self.prompts), round_ + 1, left)
            for prompt, record in zip(wave, self._run(arms[arm], wave)):
                self._keep(arm, load, round_ * waves + number, prompt, record)
        self.seconds["measure"] += self.clock() - began
        self.waves_done += len(turn)
        for arm, engine in arms.items():
            closed = {"t": self.clock(), "counters": engine.counters()}
            self.windows.append({"arm": arm, "concurrency": load, "open": opened[arm], "close": closed})

    def _run(self, engine: engines.Engine, wave: list[str]) -> list[dict]:
        gc.collect()
        gc.disable()
        try:
            ids = [self.prompts[prompt] for prompt in wave]
            return engine.run(ids, self.protocol["output_tokens"], self.protocol["ignore_eos"])
        finally:
            gc.enable()

    def _keep(self, arm: str, load: int, wave: int, prompt: str, record: dict) -> None:
        self.repeats[arm, load, prompt] += 1
        ids = self.prompts[prompt]
        self.requests.append({
            "arm": arm, "concurrency": load, "wave": wave,
            "prompt": prompt, "repeat": self.repeats[arm, load, prompt] - 1,
            "prompt_tokens": len(ids), "prompt_sha256": hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16],
            **record,
            "submit": round(record["submit"] - self.began, 7), "times": [round(t - self.began, 7) for t in record["times"]],
        })  # fmt: skip

    def _differences(self) -> list[dict]:
        """Of each prompt and load every way in which repeats differ first between the arms, and how close the choice was there."""
        ids: dict = {}
        for record in self.requests:
            ids.setdefault((record["prompt"], record["concurrency"], record["repeat"]), {})[record["arm"]] = record["ids"]
        found: dict = {}
        for (prompt, load, _), arms in ids.items():
            if len(arms) == len(ARMS) and arms["control"] != arms["test"]:
                one, other = arms["control"], arms["test"]
                first = next((i for i, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(map(len, (one, other))))
                choices = frozenset(each[first] for each in (one, other) if len(each) > first)
                if (case := (prompt, load, tuple(one[:first]), choices)) not in found:
                    found[case] = self._margin(self.prompts[prompt] + one[:first], choices)
        return [
            {"prompt": prompt, "concurrency": load, "first_difference": len(prefix), "margin": margin}
            for (prompt, load, prefix, _), margin in found.items()
        ]

    def _margin(self, prefix: list[int], choices: frozenset[int]) -> float | None:
        """None where the engine cannot tell, or fails at it; where one output is the beginning of the other, which no rounding does, since the id that
        stops is among them; and where ids are drawn to a set acceptance: they differ by design there."""
        if self._synthetic() or len(choices) < 2:
            return None
        try:
            margin = next(iter(self.open.values())).margin(prefix, choices)
        except Exception as error:  # whatever an engine raises: what was measured is not lost for it
            self.progress.say("margin", f"not known: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
            return None
        return margin if margin is not None and math.isfinite(margin) else None

    def _peaks(self, kind: str) -> dict:
        """What the device can do at most; all that was measured before is kept where it cannot be seen, as where memory is full."""
        try:
            return device.peaks(kind, self.spec["model"]["dtype"])
        except RuntimeError as error:  # torch's errors, torch.OutOfMemoryError among them
            self.progress.say("peaks", f"not measured: {str(error).splitlines()[0]}")
            return {"copy_gb_s": None, "matmul_tflops": None, "dtype": self.spec["model"]["dtype"]}

    def _synthetic(self) -> bool:
        return self.spec["mode"].get("rejection_sample_method") == "synthetic"

    def _model(self) -> dict:
        model, paths = self.spec["model"], self.request["paths"]
        drafter = Path(paths["drafter"]) if self.spec["mode"]["method"] == "mtp" else None
        return {
            "random": "shape" in model["target"],
            "synthetic_acceptance": self._synthetic(),
            **weights.constants(Path(paths["target"]), drafter, model["dtype"]),
        }

    def _software(self) -> dict:
        import torch

        name = self.spec["engine"]["implementation"]
        packages = {found.metadata["Name"]: found.version for found in importlib.metadata.distributions()}
        return {
            "python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda,
            name: self.implementation.version, "packages": dict(sorted(packages.items())),
        }  # fmt: skip

    @contextlib.contextmanager
    def _timed(self, phase: str):
        began = self.clock()
        yield
        self.seconds[phase] += self.clock() - began


def _in_order(turn: int) -> tuple[str, ...]:
    return ARMS if turn % 2 == 0 else ARMS[::-1]
