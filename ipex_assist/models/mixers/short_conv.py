"""LFM2's short convolution."""

from ipex_assist.models.mixers.mixer_kind import MixerKind


class _ShortConv(MixerKind):
    scans = False


SHORT_CONV = _ShortConv()
