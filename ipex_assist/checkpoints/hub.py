"""Models on the Hugging Face hub: finding them in the local cache, their sizes, and downloading only needed files."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.phases import phase

logger = logging.getLogger(__name__)

_SMALL_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "preprocessor_config.json",
    "processor_config.json",
    "*.model",
    "*.tiktoken",
    # What sentence-transformers writes beside a model.
    "modules.json",
    "*sentence*.json",
    "*_Pooling/*",
    "*_Dense/*",
    "*_Normalize/*",
    "*_LogitScore/*",
]
# (file that must be in the repository, patterns to fetch if it is), in order of preference.
_WEIGHTS = [
    ("model.safetensors", ["model.safetensors"]),
    ("model.safetensors.index.json", ["model.safetensors.index.json", "model-*-of-*.safetensors"]),
    ("pytorch_model.bin", ["pytorch_model.bin"]),
    ("pytorch_model.bin.index.json", ["pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]),
]
_TIMEOUT_S = 10.0


class NotOnThisMachine(IpexAssistError):
    """The model is not in the cache, and the hub is not to be asked, or does not answer."""


def is_hub_id(source: str) -> bool:
    """Whether `source` has the form of a hub id, "name" or "owner/name"."""
    return re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source) is not None and not source.endswith(".gguf")


def offline_by_environment() -> bool:
    return bool(_offline_variables())


def _offline_variables() -> list[str]:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return [name for name in names if os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE")]


def online_advice(offline: bool) -> str:
    """ "run once without …", with the flag or the variables that keep us offline."""
    reasons = [*(["--offline (in Python, offline=True)"] if offline else []), *_offline_variables()]
    return f"run once without {' and '.join(reasons)}" if reasons else "run once with a connection"


def id_in_address(source: str) -> str | None:
    """The id in the address of a model's page, as people copy it from a browser; None for anything else."""
    found = re.match(r"(?:https?://)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)", source)
    return found[1] if found else None


def cache_folder() -> Path:
    """The hub cache folder by huggingface_hub's rules, without importing it, which would slow the launcher down."""
    explicit = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(home).expanduser() / "hub"


def cached_snapshot(source: str, revision: str | None = None) -> Path | None:
    """The folder of this revision in the cache, or None."""
    model = cache_folder() / f"models--{source.replace('/', '--')}"
    revision = revision or "main"
    reference = model / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    snapshot = model / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def fetch(source: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The local folder of a hub model. Downloads config, tokenizer and one kind of weights where they are missing.

    Raises:
        IpexAssistError: the model or revision does not exist, is gated or has no weights we read, or the hub cannot be
            reached.
    """
    if offline or offline_by_environment():
        snapshot = cached_snapshot(source, revision)
        if snapshot is None:
            advice = online_advice(offline)
            raise NotOnThisMachine(f"{_not_cached(source, revision)}: {advice}")
        return snapshot
    try:
        return _download(source, revision)
    except IpexAssistError:
        raise
    except Exception as error:  # whatever the HTTP library of this huggingface_hub raises
        failure = _explain(source, revision, error)
        snapshot = cached_snapshot(source, revision)
        if failure is None and snapshot is not None:
            logger.warning("%s: the hub cannot be reached; using the copy in %s", source, snapshot)
            return snapshot
        raise failure or NotOnThisMachine(
            f"{_not_cached(source, revision)}, and the hub cannot be reached ({_first_line(_root(error))}): run "
            f"`ipex-assist pull {source}` where there is a network, or pass the folder of a copy"
        ) from error


def parameters_on_hub(source: str, revision: str | None = None) -> int | None:
    """The number of parameters that the hub states; None where it does not answer quickly."""
    try:
        info = _model_info(source, revision)
    except Exception:
        return None
    found = getattr(info, "safetensors", None)
    total = getattr(found, "total", None)
    if total:
        # GPTQ and AWQ store eight weights in an int32, which the hub counts as one parameter.
        return int(total) + 7 * int((getattr(found, "parameters", None) or {}).get("I32", 0))
    weights = [file for file in info.siblings if re.fullmatch(r"pytorch_model(-\d+-of-\d+)?\.bin", file.rfilename)]
    size = sum(file.size or 0 for file in weights)
    return size // 2 or None  # the hub states no dtype for .bin files; nearly all still in use are fp16


def quantized_bytes_on_hub(source: str, revision: str | None = None) -> int | None:
    """Bytes of a checkpoint in 4 or 8 bits; None for any other, or where the hub does not answer quickly."""
    try:
        found = getattr(_model_info(source, revision), "safetensors", None)
    except Exception:
        return None
    counts = getattr(found, "parameters", None) or {}
    packed, bytes_ = int(counts.get("I32", 0)), int(counts.get("F8_E4M3", 0)) + int(counts.get("I8", 0))
    return packed * 4 + bytes_ + 2 * (sum(counts.values()) - packed - bytes_) if packed or bytes_ else None


def _model_info(source: str, revision: str | None) -> Any:
    from huggingface_hub import HfApi

    return HfApi().model_info(source, revision=revision, files_metadata=True, timeout=_TIMEOUT_S)


def _download(source: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    files = [file.rfilename for file in _model_info(source, revision).siblings]
    patterns = next((wanted for key, wanted in _WEIGHTS if key in files), None)
    if patterns is None:
        shown = ", ".join(sorted(files)[:12])
        raise IpexAssistError(
            f"{source} has neither model.safetensors nor pytorch_model.bin on the hub; it holds {shown}. "
            "Of a GGUF repository, download one file and pass its path."
        )
    with phase(f"downloading {source}", drawn_elsewhere=True):
        return Path(snapshot_download(source, revision=revision, allow_patterns=_SMALL_FILES + patterns))


def _explain(source: str, revision: str | None, error: Exception) -> IpexAssistError | None:
    """The error for an answer of the hub; None if there was no answer."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return IpexAssistError(
            f"{source} is gated: its owner must grant you access. Ask for it at {_endpoint()}/{source}, then run "
            "'hf auth login' (or set HF_TOKEN) and try again."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return IpexAssistError(f"{source} has no revision {revision!r} at {_endpoint()}. Check --revision.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return IpexAssistError(
            f"{source}: no such model at {_endpoint()}, and no such folder here ({Path.cwd()}). Check the spelling; "
            "a private model needs 'hf auth login' (or HF_TOKEN)."
        )
    if isinstance(error, errors.HFValidationError):
        return IpexAssistError(f"{source}: neither a hub id nor a folder here ({_first_line(error)}).")
    return None


def _not_cached(source: str, revision: str | None) -> str:
    at = f" at revision {revision}" if revision else ""
    return f"{source}{at} is neither a folder here ({Path.cwd()}) nor in the cache ({cache_folder()})"


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co")


def _root(error: BaseException) -> BaseException:
    """The first exception of a chain: "Name or service not known" instead of the HTTP library's wrapping of it."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def canonical_id(source: str) -> str:
    """The present hub id: TinyLlama's checkpoints moved from PY007/ to TinyLlama/."""
    owner, slash, name = source.partition("/")
    return f"TinyLlama/{name}" if slash and owner == "PY007" and name.startswith("TinyLlama") else source
