"""A mixer is said in its own files, in the tables of mixers and specs, and by its families: nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ipex_assist
from ipex_assist.models.mixers import MIXERS

ROOT = Path(ipex_assist.__file__).parent
# What a new kind of recurrent mixers has to say in files that all of them share.
SHARED = {
    "models/mixers/__init__.py",
    "models/recurrent_spec.py",
    "executors/torch/mixers/recurrent.py",
    "native/mixers/table.cpp",
    "native/packing/spec.h",
}
OLD = {"native/packing/weights.h", "native/mixers/check_recurrent.cpp", "executors/torch/mixers/run.py"}
# What attention that chooses blocks says outside of its folder.
OF_CHOICE = {"models/attention_spec.py", "models/choice_spec.py", "native/packing/spec.h"}
# What mixers bring along in their folders, by names that the files of all mixers have no need of.
BROUGHT_ALONG = {
    "kernels": r"\b(Index|Scan)Kernels\b|\b(score_index|store_index_query|index_tile|decay_keys|ScanTile)\b|mixers->",
    "sight": r"\b(Chosen|Block)Sight\b|\b(chosen_size|keys_before|seen_entries)\b|shape\.(top_k|pool|rate)",
    "buffers": r"\b(index_scores|index_keys|choice_keys|scored_rows)\b|activations\.shared\.(chosen|notes|work)\b",
    "blocks": r"\b(KeptBeside|index_at|index_precision|open_row|entry_type|(write|read)_index)\b|cache\.chosen",
}


def files_with(pattern: str) -> set[str]:
    """Those of the package, sources of the core included, in which this is."""
    found = [path for end in ("py", "cpp", "h") for path in ROOT.glob(f"**/*.{end}")]
    return {str(path.relative_to(ROOT)) for path in found if re.search(pattern, path.read_text(encoding="utf-8"))}


def is_own(path: str) -> bool:
    """Whether a mixer, or a family, has the file for itself."""
    folder, _, name = path.rpartition("/")
    family = folder == "models" and not name.endswith(("_spec.py", "spec.py", "names.py", "weights.py"))
    mixer = re.fullmatch(r"native/mixers/\w+|(models|executors/torch)/mixers", folder) is not None
    return family or path.startswith("checkpoints/gguf_") or (mixer and path not in SHARED)


@pytest.mark.parametrize("kind", MIXERS)
def test_where_a_kind_is_named(kind: str) -> None:
    """The next kind would have to be added there, too: in more than eight files it is not a folder any more."""
    named = {path for path in files_with(rf"\b({kind}|{kind.upper()})\b") if not is_own(path)}
    assert named <= SHARED | OLD
    assert len(SHARED) <= 8


def test_where_a_choice_of_blocks_is_named() -> None:
    """Variants of attention are hooks of their mixer's, not conditions in the operations that all have."""
    named = files_with(
        r"BlockChoiceSpec|\bchoice\.(blocks|size|local|positions)|choose_blocks|_choice_keys|gather_choice"
    )
    assert {path for path in named if not is_own(path)} <= OF_CHOICE


@pytest.mark.parametrize("pattern", BROUGHT_ALONG.values(), ids=BROUGHT_ALONG)
def test_where_what_mixers_bring_along_is_named(pattern: str) -> None:
    """A kernel, a sight or a buffer of one mixer would be a line more in several files that all of them share."""
    assert {path for path in files_with(pattern) if not is_own(path)} <= {"native/mixers/kernels.h"}
