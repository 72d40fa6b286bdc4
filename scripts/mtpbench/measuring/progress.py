"""Progress lines on stderr, in one format."""

import sys
import time


class Progress:
    """`[mtpbench] phase | prompt k of n | round r | time left mm:ss`; parts that a phase does not have are left out."""

    EVERY_S = 1.0

    def __init__(self) -> None:
        self.last = 0.0

    def say(self, phase: str, *parts: str) -> None:
        """Print a line at once."""
        print(" | ".join([f"[mtpbench] {phase}", *parts]), file=sys.stderr, flush=True)
        self.last = time.perf_counter()

    def wave(self, prompt: int, prompts: int, round_: int, seconds_left: float | None) -> None:
        """Print where the measurement stands, at most once a second."""
        if time.perf_counter() - self.last >= self.EVERY_S:
            left = "--:--" if seconds_left is None else "{:02d}:{:02d}".format(*divmod(int(seconds_left), 60))
            self.say("measure", f"prompt {prompt} of {prompts}", f"round {round_}", f"time left {left}")
