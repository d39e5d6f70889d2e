"""What a kind of recurrent mixers says of itself: its weights by our names, and which of a spec's numbers it takes."""

from __future__ import annotations

from typing import Protocol

from ipex_assist.models.ngram_spec import NgramSpec


class MixerNumbers(Protocol):
    """The numbers of a recurrent mixer: RecurrentSpec, which says what they are."""

    @property
    def heads(self) -> int: ...
    @property
    def key_heads(self) -> int: ...
    @property
    def key_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def key_size(self) -> int: ...
    @property
    def value_size(self) -> int: ...
    @property
    def conv_kernel(self) -> int: ...
    @property
    def gate_rank(self) -> int: ...
    @property
    def selection_norm(self) -> str | None: ...
    @property
    def decay_bound(self) -> float | None: ...
    @property
    def hashes(self) -> NgramSpec | None: ...


class MixerKind:
    """A kind of recurrent mixers. This one has no linears of a low rank, and no vectors of a scan."""

    scans = True  # whether it has a state beside the rows of its convolution
    bounds_decays = False  # whether decays may have a bound
    gates_biased = False  # whether the linears of its `gate_parts` have a bias
    reads_streams = False  # whether it reads residual streams as they are, and adds to each, without a linear behind it
    is_delta = False  # whether values are corrected by what the state recalls, and each head's result is normalised

    def check(self, spec: MixerNumbers) -> None:
        """Assert that a spec's numbers go together."""
        assert spec.selection_norm is None, "a norm of a selection that there is not"
        assert spec.decay_bound is None or self.bounds_decays, "decays without a bound"

    def input_parts(self, spec: MixerNumbers) -> dict[str, int]:
        """What its input linear gives: our names of the parts, and their columns."""
        return {"q_in": spec.key_size, "k_in": spec.key_size, "v_in": spec.value_size}

    def gate_parts(self, spec: MixerNumbers) -> dict[str, int]:
        """What is made of those of a low rank."""
        return {}

    def low_parts(self, spec: MixerNumbers) -> dict[str, int]:
        """What is made of convolved values."""
        return {}

    def vectors(self, spec: MixerNumbers) -> dict[str, int]:
        """Its weights that are no matrices, but the norm's: our names, and how many elements they have."""
        return {"v_conv": spec.conv_kernel * spec.value_size}


class ScanningKind(MixerKind):
    """One whose queries, keys and values are convolved, and whose heads have a decay each."""

    def input_parts(self, spec: MixerNumbers) -> dict[str, int]:
        """Decay inputs and output gates as well."""
        return {**super().input_parts(spec), "a_in": spec.heads, "z_in": spec.value_size}

    def vectors(self, spec: MixerNumbers) -> dict[str, int]:
        """Convolutions of queries and keys, and what decays are made of, as well."""
        convs = dict.fromkeys(("q_conv", "k_conv"), spec.conv_kernel * spec.key_size)
        return {**super().vectors(spec), **convs, "a_log": spec.heads, "dt_bias": spec.heads}
