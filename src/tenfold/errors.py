"""The error that is shown to the user as one message, without a traceback."""


class TenfoldError(Exception):
    """Something the user can mend: the message names what was found, what is allowed and what to do."""
