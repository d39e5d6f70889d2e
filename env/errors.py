"""Errors that are printed to the user as one message, never as a traceback."""


class IpexAssistError(Exception):
    """Something failed. The message says what happened, with the numbers, and then what the user can type."""

    exit_code = 1


class UsageError(IpexAssistError):
    """The request itself cannot be met: a flag, a value, or a combination of them."""

    exit_code = 2
