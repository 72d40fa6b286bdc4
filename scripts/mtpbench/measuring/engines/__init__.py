"""The engines behind one interface; each module imports its library, so a session asks for the one that it needs."""

from mtpbench.measuring.engines.base import Engine


def implementation(name: str) -> type[Engine]:
    """The class of an engine by the name that a spec uses; called with (request, mode, beside) it loads one arm.

    `beside` is the other arm's engine where that is open, whose weights may be shared, else None.
    """
    if name == "transformers":
        from mtpbench.measuring.engines.transformers import Transformers

        return Transformers
    from mtpbench.measuring.engines.vllm import Vllm

    return Vllm
