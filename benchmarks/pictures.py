"""The README's pictures: a recording of its first example in a terminal, and the server's chat page.

    python benchmarks/pictures.py                  # make both again, into docs/pictures
    python benchmarks/pictures.py --into FOLDER    # elsewhere, to see that they can be made
    python benchmarks/pictures.py --check          # exit 1 where the kept ones are not what they should be

Both show the embedded model, on this machine, with a cache of their own. It is started once before: the recording is of
an ordinary start, whose packed weights are on disk. `pip install ".[dev,serve]"` and Chromium are needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import chat_page
import measure
import results
import terminal_cast
import terminal_svg
from own_server import OwnServer
from terminal_cast import Cast

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.launch.plan import without_plan

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
README = ROOT / "README.md"
COMMAND = 'ipex-assist "Why is the sky blue?"'
COLUMNS, ROWS = 90, 24
MESSAGES = ["What is the capital of France?", "Why is the sky blue? Answer briefly."]
# What a page loads quickly, and a reader watches to its end.
MOST_BYTES = {"answer.svg": 150_000, "page.png": 120_000}
MOST_SECONDS = 15.0


def make(folder: Path) -> None:
    """Record, draw and photograph into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ipex-assist-pictures-") as cache:
        environ = {**without_plan(os.environ), "XDG_CACHE_HOME": cache}
        environ.pop("IPEX_ASSIST_PACKED", None)
        argv = [sys.executable, "-m", "ipex_assist", *shlex.split(COMMAND)[1:]]
        for _ in range(2):  # the second one finds the packed weights
            cast = terminal_cast.record(COMMAND, argv, columns=COLUMNS, rows=ROWS, environ=environ, folder=ROOT)
        keep(dataclasses.replace(cast, title=results.machine_of(measure.machine())[0]), folder)
        with OwnServer([], environ) as server:
            host, port = server.address
            chat_page.photograph(f"http://{host}:{port}/", MESSAGES, folder / "page.png")


def keep(cast: Cast, folder: Path) -> None:
    """Store a recording and its picture. Raises IpexAssistError where it shows this machine's folders."""
    text = cast.dumps()
    if sys.prefix in text:
        raise IpexAssistError(f"the recording shows {sys.prefix}, a folder of this machine")
    (folder / "answer.cast").write_text(text, encoding="utf-8")
    (folder / "answer.svg").write_text(terminal_svg.draw(Cast.load(folder / "answer.cast")), encoding="utf-8")


def complaints(folder: Path = FOLDER, readme: str | None = None) -> list[str]:
    """What is wrong with the kept pictures, and with how the README shows them."""
    readme = README.read_text(encoding="utf-8") if readme is None else readme
    found = []
    cast = Cast.load(folder / "answer.cast")
    if (folder / "answer.svg").read_text(encoding="utf-8") != terminal_svg.draw(cast):
        found.append("answer.svg is not what answer.cast yields")
    if terminal_svg.duration(cast) > MOST_SECONDS:
        found.append(f"answer.svg takes {terminal_svg.duration(cast):.1f} s, more than {MOST_SECONDS:.0f}")
    if not re.search(rf"^    {re.escape(cast.command)}(?:  |$)", readme, re.MULTILINE):
        found.append(f"the README has no command {cast.command}")
    if cast.title not in readme:
        found.append(f"the README does not say that they were made on {cast.title}")
    for name, most in MOST_BYTES.items():
        if (size := (folder / name).stat().st_size) > most:
            found.append(f"{name} has {size:,} bytes, more than {most:,}")
        if not re.search(rf"!\[[^]]+\]\(docs/pictures/{re.escape(name)}\)", readme):
            found.append(f"the README does not show {name} with a text for who cannot see it")
    return found


def main(argv: list[str] | None = None) -> int:
    """Make the pictures, or check the kept ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=FOLDER, metavar="FOLDER", help="where to (%(default)s)")
    parser.add_argument("--check", action="store_true", help="check the kept pictures and make none")
    options = parser.parse_args(argv)
    try:
        if options.check:
            found = complaints()
            for each in found:
                print(f"pictures.py: {each}; python benchmarks/pictures.py makes both again", file=sys.stderr)
            return 1 if found else 0
        make(options.into)
    except IpexAssistError as error:
        print(f"pictures.py: {error}", file=sys.stderr)
        return error.exit_code
    for name in MOST_BYTES:
        print(f"{options.into / name}: {(options.into / name).stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
