"""Many sessions in one process, on engines that stay loaded: for a machine that is lent by the minute.

An engine start costs more than a cell, so each engine is started once for all the sessions of a process. Two sessions of
one cell still run in two processes, so that the difference between starts is seen; several processes may load side by
side, and then measure one after another.
"""

import contextlib
import json
import os
from collections.abc import Iterator

from mtpbench.measuring import device, engines
from mtpbench.measuring.session import ARMS, Session, answer

SHORT = 16  # ids of a wave that only ends a pause


def answers(requests: list[dict], turn: int) -> Iterator[dict]:
    """First {"status": "loaded"}; then, once the pipe `turn` brings a byte, the reply to each request as soon as it is there.

    One device and engine serve all requests. Without a turn, since the other end of the pipe is gone, nothing is measured.
    """
    # All before the first measurement: that initializes CUDA here, and vLLM would then have to start each further engine in
    # an interpreter without its imports. What fails here fails again, and is told, in its own session.
    for request in requests:
        with contextlib.suppress(Exception):
            Together(request).load()
    yield {"status": "loaded"}
    if not os.read(turn, 1):
        return
    for request in requests:
        yield answer(json.dumps(request), Together)
    for engine, _ in Together.shelf.values():
        engine.close()


class Together(Session):
    """A session that takes loaded engines over from the sessions before it and leaves its own to the next."""

    shelf: dict[str, tuple[engines.Engine, float]] = {}  # with the seconds that it took to load
    warm: set[tuple] = set()

    def load(self) -> None:
        device.verified(self.spec["device"])
        self._set_environment()
        with self._timed("load"):
            self.implementation = engines.implementation(self.spec["engine"]["implementation"])
        self.import_s = self.seconds["load"]
        beside = None
        for arm in ARMS:
            beside = self._made(arm, beside)

    def _engine(self, arm: str) -> engines.Engine:
        engine = super()._engine(arm)
        self.settings["engines"] = "loaded once for all sessions of one process"
        if (processes := self.request["processes"]) > 1:
            self.settings["engines"] += f", {processes} of which loaded theirs side by side and measured in turns"
        self.arms[arm]["load_s"] = round(self.shelf[self._key(arm)][1], 3)
        return engine

    def _key(self, arm: str) -> str:
        """All that an engine is built from."""
        mode, paths = self.implementation.family(self.modes[arm]), self.request["paths"]
        weights = paths if mode["method"] == "mtp" else paths["target"]
        return json.dumps([arm, mode, weights, self.spec["model"]["dtype"], self.spec["engine"], self.protocol["order"]], sort_keys=True)

    def _made(self, arm: str, beside: engines.Engine | None) -> engines.Engine:
        key = self._key(arm)
        if key not in self.shelf:
            self.progress.say("load", f"{self.modes[arm]}")
            began = self.clock()
            engine = super()._made(arm, beside)
            self.shelf[key] = engine, self.import_s + engine.borrowed_s + self.clock() - began
        engine, _ = self.shelf[key]
        engine.adopt(self.modes[arm])
        return engine

    def _warm_up(self, engine: engines.Engine, again: bool) -> None:
        """In full where this engine has not yet run a load point in this mode (and these prompts this far, where all are asked for),
        else a short wave after the pause."""
        for load in self.protocol["concurrency"]:
            lengths = [self.prompts, self.protocol["output_tokens"], self.protocol["ignore_eos"]] if self.protocol["warmup"] == "all" else None
            state = (id(engine), json.dumps([engine.mode, lengths], sort_keys=True), load)
            waves = self._unmeasured(load, again)
            if state in self.warm and waves:
                engine.run([self.prompts[prompt] for prompt in waves[0]], SHORT, True)
            else:
                for wave in waves:
                    self._run(engine, wave)
                self.warm.add(state)

    def _given_back(self, engine: engines.Engine) -> None:
        """It stays on the shelf."""
