"""The one exception that a user's mistake becomes."""


class UserError(Exception):
    """A mistake that the user can repair: one line that names the thing, the place and the remedy.

    Scripts print it to stderr and exit with status 1; it never shows a traceback.
    """
