"""Asks Modal whether token, volume and secret are in order: `python -m mtpbench.backends.questions SETTINGS_JSON`.

Prints one JSON line an answer: [what, "ok" | "repair" | "unknown", text]. A program of its own because without a network
Modal's client tries for a minute, and only a process can be left at once.
"""

import json
import sys

import modal

from mtpbench.backends import InfrastructureError
from mtpbench.backends.modal import explained
from mtpbench.errors import UserError


def main() -> None:
    settings = json.loads(sys.argv[1])
    volume, secret = settings["volume"], settings["secret"]
    questions = [  # what about, a call that raises what Modal raises, and the words for what it returns
        ("token", lambda: modal.Client.from_env().hello(), "accepted"),
        (f"volume {volume}", lambda: len(modal.Volume.from_name(volume).listdir("/")), "{} entries at its top"),
    ]
    if secret:
        questions.append((f"secret {secret}", modal.Secret.from_name(secret, required_keys=["HF_TOKEN"]).hydrate, "holds HF_TOKEN"))
    for what, question, words in questions:
        try:
            with explained(settings):
                answer = "ok", words.format(question())
        except InfrastructureError as error:
            answer = "unknown", str(error)
        except UserError as error:
            answer = "repair", str(error)
        print(json.dumps([what, *answer]), flush=True)
        if what == "token" and answer[0] != "ok":
            return


if __name__ == "__main__":
    main()
