"""The one exception that a user's mistake becomes, and the one line that it is."""


class UserError(Exception):
    """A mistake that the user can repair: one line that names the thing, the place and the remedy.

    Scripts print it to stderr and exit with status 1; it never shows a traceback.
    """


def one_line(text: str, most: int = 300) -> str:
    """What others say, as one line of at most so many characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most - 3]}..."
