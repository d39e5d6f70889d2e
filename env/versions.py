"""The versions of this package and of those it runs on, and how an extra of it is installed: nothing is imported."""

from __future__ import annotations

import platform
import re
import shlex
from pathlib import Path

from ipex_assist.version import __version__

PACKAGES = ("torch", "transformers", "intel-extension-for-pytorch", "optimum-intel")


def versions() -> dict[str, str | None]:
    """By name; None where a package is not installed."""
    from importlib import metadata  # late, as it takes long

    found: dict[str, str | None] = {"ipex-assist": __version__, "Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def install_command(extra: str) -> str:
    """What to type for an extra of this package, by how this copy was installed.

    In a checkout it is the checkout that pip is given; elsewhere the packages that the extra names, since a wheel is
    not at hand and no index has this package.
    """
    from importlib import metadata

    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "setup.py").is_file():
        return f"pip install {shlex.quote(f'{checkout}[{extra}]')}"
    try:
        needed = metadata.requires("ipex-assist") or []
    except metadata.PackageNotFoundError:
        needed = []
    of_extra = re.compile(rf"""\bextra\s*==\s*['"]{re.escape(extra)}['"]""")
    packages = [line.partition(";")[0].strip().replace(" ", "") for line in needed if of_extra.search(line)]
    return (
        f"pip install {shlex.join(packages)}" if packages else f"pip install '.[{extra}]' in a checkout of ipex-assist"
    )
