"""Asks Modal whether token, volume and secret are in order: `python -m mtpbench.backends.questions SETTINGS_JSON`.

Prints one JSON line an answer: [what, "ok" | "repair" | "unknown", text]. A program of its own because without a network
Modal's client tries for a minute, and only a process can be left at once.
"""

import json
import sys

import modal

from mtpbench.backends import InfrastructureError
from mtpbench.backends.explained import explained
from mtpbench.errors import UserError


def main() -> None:
    settings = json.loads(sys.argv[1])
    for what, question in questions(settings).items():
        try:
            with explained(settings):
                answer = "ok", question()
        except InfrastructureError as error:
            answer = "unknown", str(error)
        except UserError as error:
            answer = "repair", str(error)
        print(json.dumps([what, *answer]), flush=True)
        if what == "token" and answer[0] != "ok":
            return


def questions(settings: dict) -> dict:
    """What is asked, in order; each answers with a few words or raises what Modal raises."""

    def token() -> str:
        modal.Client.from_env().hello()
        return "accepted"

    def volume() -> str:
        return f"{len(modal.Volume.from_name(settings['volume']).listdir('/'))} entries at its top"

    def secret() -> str:
        modal.Secret.from_name(settings["secret"], required_keys=["HF_TOKEN"]).hydrate()
        return "holds HF_TOKEN"

    asked = {"token": token, f"volume {settings['volume']}": volume}
    return asked | ({f"secret {settings['secret']}": secret} if settings["secret"] else {})


if __name__ == "__main__":
    main()
