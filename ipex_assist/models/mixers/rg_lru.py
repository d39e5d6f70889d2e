"""RG-LRU, the real-gated linear recurrent unit (Griffin, De et al. 2024, arXiv:2402.19427, section 2.4)."""

from __future__ import annotations

from ipex_assist.models.mixers.mixer_kind import MixerKind, MixerNumbers


class _RgLru(MixerKind):
    gates_biased = True

    def check(self, spec: MixerNumbers) -> None:
        super().check(spec)
        assert (spec.key_heads, spec.key_dim) == (1, 1), "keys of an RG-LRU"
        assert spec.gate_rank == spec.value_dim, "gates of other rows than those of a block"

    def input_parts(self, spec: MixerNumbers) -> dict[str, int]:
        return {"v_in": spec.value_size, "z_in": spec.value_size}

    def gate_parts(self, spec: MixerNumbers) -> dict[str, int]:
        return {"a_in": spec.value_size, "b_in": spec.value_size}

    def vectors(self, spec: MixerNumbers) -> dict[str, int]:
        return {**super().vectors(spec), "a_param": spec.value_size}


RG_LRU = _RgLru()
