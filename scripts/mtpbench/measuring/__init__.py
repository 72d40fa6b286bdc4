"""Measures one session in the engine's own environment: `python -m mtpbench.measuring`, JSON in on stdin, JSON out on stdout."""

from mtpbench.errors import UserError


class Refused(UserError):
    """A session that cannot be measured as asked; `kind` is that of the error reply: "device" or "request"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
