"""Embeddings of n-grams, which residual streams get (Qwen4)."""

from __future__ import annotations

from ipex_assist.models.mixers.mixer_kind import MixerKind, MixerNumbers

NORMS = ("ngram_key_norm", "ngram_query_norm", "ngram_conv_norm")


class _Ngrams(MixerKind):
    scans = False
    reads_streams = True

    def input_parts(self, spec: MixerNumbers) -> dict[str, int]:
        """A key for each stream, and their value."""
        return {"k_in": spec.value_size, "v_in": spec.value_dim}

    def vectors(self, spec: MixerNumbers) -> dict[str, int]:
        """The norms of keys, streams and gated values, too."""
        assert spec.hashes is not None, "n-grams without their numbers"
        return {"v_conv": spec.hashes.kernel * spec.value_size, **dict.fromkeys(NORMS, spec.value_size)}


NGRAM_ROWS = _Ngrams()
