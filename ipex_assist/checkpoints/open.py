"""Opens a hub id, a folder or a GGUF file as one checkpoint: a config and named tensors, read one at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipex_assist.checkpoints import hub
from ipex_assist.checkpoints.base import Checkpoint, read_json, require_file
from ipex_assist.checkpoints.folder import FolderCheckpoint
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.hub import canonical_id
from ipex_assist.checkpoints.products import with_products
from ipex_assist.env.errors import IpexAssistError, UsageError


def open_checkpoint(source: str, *, revision: str | None = None, offline: bool = False) -> Checkpoint:
    """Open a hub id (fetched into the hub cache if need be), a folder, or a .gguf file. Reads no weights.

    Raises:
        UsageError: there is nothing at this path.
        IpexAssistError: it cannot be downloaded, or is unreadable, incomplete, truncated or corrupt.
    """
    return OpenCheckpoints().open(source, revision=revision, offline=offline)


class OpenCheckpoints:
    """The checkpoints that a process has open, so that each is opened only once."""

    def __init__(self) -> None:
        # By name, path and modification time: a download may add files to a folder that was opened before.
        self._open: dict[tuple[str, Path, int], Checkpoint] = {}

    def open(self, source: str, *, revision: str | None = None, offline: bool = False) -> Checkpoint:
        """`open_checkpoint`, or its earlier result for the same files. A failure is not remembered."""
        source = canonical_id(source)
        try:
            path = _locate(source, revision, offline)
            key = source, path, path.stat().st_mtime_ns
            if key not in self._open:
                self._open[key] = _open(source, path, offline)
            return self._open[key]
        except (OSError, ValueError) as error:  # no permission, a name too long or with a zero byte, a broken disk, …
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise IpexAssistError(f"{source} cannot be read: {reason or type(error).__name__}") from error


def check_source(source: str) -> Path | None:
    """The folder or file that `source` names; None for a hub id. Raises UsageError for a path that does not exist."""
    path = Path(os.path.expanduser(source))
    if path.is_file() or path.is_dir():
        return path
    if path.exists():
        require_file(path)
    if (named := hub.id_in_address(source)) is not None:
        raise UsageError(f"{source} is an address of the hub; the model's id is enough: {named}")
    if not hub.is_hub_id(source):
        raise UsageError(f"{source}: no such file or folder (looked for {path.absolute()}).")
    return None


def _locate(source: str, revision: str | None, offline: bool) -> Path:
    """The folder or file of a source, downloaded from the hub if necessary."""
    return check_source(source) or hub.fetch(source, revision=revision, offline=offline)


def _open(source: str, path: Path, offline: bool) -> Checkpoint:
    if path.is_file():
        return GgufCheckpoint(source, path)
    fetched = path != Path(os.path.expanduser(source))
    hint = f"The cached copy of {source} is incomplete; {hub.online_advice(offline)} to complete it."
    return with_products(_presented(FolderCheckpoint(source, path, hint if fetched else "")))


def _presented(stored: FolderCheckpoint) -> Checkpoint:
    """The checkpoint itself, or, if its linears are quantized, a wrapper that presents float weights."""
    from ipex_assist.checkpoints.bitnet import BitnetCheckpoint
    from ipex_assist.checkpoints.bitsandbytes import BitsAndBytesCheckpoint
    from ipex_assist.checkpoints.compressed import METHODS, CompressedCheckpoint
    from ipex_assist.checkpoints.mxfp4 import Mxfp4Checkpoint
    from ipex_assist.checkpoints.quantized import QuantizedCheckpoint, quantization_of

    declared: Mapping[str, Any] | None = quantization_of(stored.config)
    if declared is not None and declared.get("quant_method") == "mxfp4":
        return Mxfp4Checkpoint(stored)
    if declared is None and (own := read_json(stored.path / "hf_quant_config.json")):
        # modelopt's own file, which older versions do not repeat in config.json.
        named = own.get("quantization")
        declared = {"quant_method": "modelopt", **(named if isinstance(named, dict) else {})}
    if declared is None:
        # Older AutoGPTQ and AutoAWQ wrote files of their own instead of a quantization_config.
        for name, method in (("quantize_config.json", "gptq"), ("quant_config.json", "awq")):
            own = read_json(stored.path / name)
            if own:
                declared = {"quant_method": method, **own}
                break
    if declared is None:
        return stored
    of_methods = {"bitsandbytes": BitsAndBytesCheckpoint, "bitnet": BitnetCheckpoint}
    kind = of_methods | dict.fromkeys(METHODS, CompressedCheckpoint)
    return kind.get(str(declared.get("quant_method")), QuantizedCheckpoint)(stored, declared)
