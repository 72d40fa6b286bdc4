"""The measuring program: one request on stdin, one reply on stdout, all else (progress, engine chatter) on stderr.

A list of requests is answered by as many replies, a line each, from engines that they share. Its one argument is then the
descriptor of a pipe: a first line says that the engines are loaded, and measuring begins when a byte comes.
"""

import json
import os
import sys


def main() -> None:
    # File descriptor 1 becomes a second stderr before any engine is imported, so that nothing, be it C code or a
    # process that the engine starts, can write into the reply; 0 is closed to them likewise.
    reply_to = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    request_json = sys.stdin.buffer.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    if request_json.startswith(b"[{"):
        from mtpbench.measuring.together import answers

        replies = answers(json.loads(request_json), int(sys.argv[1]))
    else:
        from mtpbench.measuring.session import answer

        replies = [answer(request_json)]
    with os.fdopen(reply_to, "w", encoding="utf-8") as stream:
        for reply in replies:
            try:
                line = json.dumps(reply, allow_nan=False, ensure_ascii=False)
            except ValueError as error:  # a number that is none; the sessions that follow are not to blame
                told = {"status": "error", "error": {"kind": "engine", "message": f"the record is no JSON: {error}", "tail": ""}}
                line = json.dumps({**reply, "session": None, **told})
            stream.write(line + "\n")
            stream.flush()
    sys.stderr.flush()
    os._exit(0)  # the engines are closed; what their libraries do at exit takes seconds and can crash


if __name__ == "__main__":
    main()
