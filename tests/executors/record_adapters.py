"""Records what PEFT computes with the adapters of test_adapters.py: python tests/executors/record_adapters.py

It needs peft, which the tests do not: `pip install --target FOLDER --no-deps peft`, and FOLDER in PYTHONPATH.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from peft import PeftModel  # noqa: E402
from test_adapters import RECORDED, TOKENS, VARIANTS, save_by_formula  # noqa: E402


def main() -> None:
    """Write the last token's logits of each kind of model."""
    recorded = {}
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            model = save_by_formula(Path(folder), variant)
            adapted = PeftModel.from_pretrained(model, str(Path(folder) / "adapter"))
            with torch.inference_mode():
                recorded[variant] = adapted(torch.tensor([TOKENS])).logits[0, -1].tolist()
    rounded = {name: [float(f"{each:.7g}") for each in logits] for name, logits in recorded.items()}
    RECORDED.write_text(json.dumps(rounded) + "\n")


if __name__ == "__main__":
    main()
