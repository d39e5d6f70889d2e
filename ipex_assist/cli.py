"""The command `ipex-assist`: checks its flags, chooses a place, and starts itself there. Never imports torch."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

# Nothing else is imported up here: `main` knows what to do with a Ctrl-C in the middle of an import.


def main(argv: list[str] | None = None) -> int:
    """Run `ipex-assist`; returns an exit code, or becomes the process that generates.

    argv: without it this is the command of a shell, which exits next, and Ctrl-C is ignored from then on.
    """
    try:
        from ipex_assist.env.runner import ignore_interrupts, run_command, same_interrupts_after, terminated_by_sigterm

        exits, argv = argv is None, sys.argv[1:] if argv is None else argv
        if sys.stdout is None:
            print("ipex-assist: error: standard output is closed; >/dev/null discards the text", file=sys.stderr)
            return 1
        if sys.stderr is None:  # a daemon's child: nobody reads messages, but they must not fail or land in a file
            sys.stderr = _no_messages()
        verbose = "-v" in argv or "--verbose" in argv
        with same_interrupts_after(), terminated_by_sigterm():
            code = run_command(lambda: _dispatch(argv), "ipex-assist: error", verbose=verbose)
        if exits:
            ignore_interrupts()
        return code
    except KeyboardInterrupt:
        return 130


def _no_messages() -> TextIO:
    """Return a sink on descriptor 2, for the programs that this process becomes as well."""
    import os

    null = os.open(os.devnull, os.O_WRONLY)
    if null != 2:
        os.dup2(null, 2)
        os.close(null)
    os.set_inheritable(2, True)
    return open(2, "w", closefd=False)


def _dispatch(argv: list[str]) -> int:
    from ipex_assist.commands.shared.command_table import COMMANDS, TEXT, WORKER

    _check_start(argv)
    command = {**COMMANDS, "worker": WORKER}.get(argv[0]) if argv else None
    return TEXT.main(argv) if command is None else command.main(argv[1:])


def _check_start(argv: list[str]) -> None:
    """Say what makes words and paths mean something else than was typed."""
    import os

    try:
        os.getcwd()
    except OSError:
        from ipex_assist.env.errors import UsageError

        raise UsageError("the folder that this shell is in was deleted: cd to another one") from None
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") == "utf8":
        return
    for word in argv:
        raw = os.fsencode(word)
        try:
            meant = raw.decode()
        except UnicodeDecodeError:
            continue
        if meant != word:
            shown = ascii(meant[:40])
            print(
                f"ipex-assist: the locale is {encoding}, and {shown} is read otherwise, since it was typed in UTF-8: "
                "LC_ALL=C.UTF-8 before the command reads it as it was typed",
                file=sys.stderr,
            )
            return


if __name__ == "__main__":
    sys.exit(main())
