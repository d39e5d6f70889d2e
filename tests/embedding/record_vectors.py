"""Records what sentence-transformers makes of tests/embedding_folders.py: run with its version 6.2 installed.

python tests/embedding/record_vectors.py tests/embedding/recorded_vectors.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import embedding_folders as folders


def main(argv: list[str]) -> int:
    import sentence_transformers
    from sentence_transformers import CrossEncoder, SentenceTransformer

    found: dict[str, Any] = {"version": sentence_transformers.__version__, "embedders": {}, "rerankers": {}}
    with tempfile.TemporaryDirectory() as place:
        for number, name in enumerate(folders.EMBEDDERS):
            folder = folders.write_embedder(Path(place) / str(number), name)
            model = SentenceTransformer(str(folder), device="cpu")
            told = [{}, *({"prompt_name": prompt} for prompt in folders.EMBEDDERS[name][1].get("prompts", ()))]
            vectors = [model.encode(list(folders.TEXTS), **each) for each in told]
            found["embedders"][name] = [[[round(float(x), 7) for x in row] for row in each] for each in vectors]
        for name, model_type in folders.RERANKERS.items():
            folder = folders.write_model(Path(place) / name, model_type, "ForSequenceClassification", pad_token_id=0)
            pairs = [(folders.QUERY, text) for text in folders.TEXTS]
            scores = CrossEncoder(str(folder), device="cpu").predict(pairs)
            found["rerankers"][name] = [round(float(score), 7) for score in scores]
    text = json.dumps(found, separators=(",", ":"))
    Path(argv[0]).write_text(text.replace("]],", "]],\n") + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
