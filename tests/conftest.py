"""What several test files need: the engines' own environments and the project's folder."""

from pathlib import Path

import pytest
from hypothesis import settings

from mtpbench import config, environment

ROOT = Path(__file__).resolve().parent.parent

# These machines are noisy: how long an example takes says nothing about the code.
settings.register_profile("mtpbench", deadline=None)
settings.load_profile("mtpbench")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def engine_python():
    """engine_python("vllm"): the interpreter of that engine's CPU environment, built first when it is missing."""

    def interpreter(engine: str) -> str:
        files = config.load(ROOT / "config" / "config.yaml")["engines"][engine]["requirements"]["cpu"]
        return str(environment.ensure(engine, [ROOT / file for file in files], ROOT / ".envs"))

    return interpreter
