"""What the C++ core and Python share of a pass, as ctypes: mirrors of operations/batch.h."""

from __future__ import annotations

import ctypes


class Segment(ctypes.Structure):
    """Mirrors `Segment` of batch.h: the rows of one sequence in a pass."""

    _fields_ = [
        ("blocks", ctypes.c_void_p),
        ("block_count", ctypes.c_int32),
        ("start", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("rope_start", ctypes.c_int32),
        ("rope_rows", ctypes.c_int32),
        ("cosine", ctypes.c_void_p),
        ("sine", ctypes.c_void_p),
        ("state", ctypes.c_int32),
        ("settled", ctypes.c_int32),
        ("settle", ctypes.c_int32),
        ("adapter_scale", ctypes.c_float),
        ("adapter", ctypes.c_void_p),
    ]


class CTaps(ctypes.Structure):
    """Mirrors `Taps` of batch.h: hidden states that a pass gives."""

    _fields_ = [
        ("layers", ctypes.POINTER(ctypes.c_int32)),
        ("count", ctypes.c_int32),
        ("normed", ctypes.c_int32),
        ("of_logit_rows", ctypes.c_int32),
        ("streams", ctypes.c_int32),
        ("rows", ctypes.c_void_p),
    ]


class Batch(ctypes.Structure):
    """Mirrors `Batch` of batch.h."""

    _fields_ = [
        ("segment_count", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("segments", ctypes.POINTER(Segment)),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("blocks", ctypes.c_void_p),
        ("logit_rows", ctypes.POINTER(ctypes.c_int32)),
        ("logit_row_count", ctypes.c_int32),
        ("vocabulary", ctypes.c_int32),
        ("logits", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("states", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("own_hidden", ctypes.c_int32),
        ("hidden", ctypes.c_void_p),
        ("taps", CTaps),
        ("embeddings", ctypes.c_void_p),
        ("embedding_layers", ctypes.c_int32),
        ("ahead_in_windows", ctypes.c_int32),
        ("last_seen", ctypes.c_void_p),
    ]


class DraftRequest(ctypes.Structure):
    """Mirrors `DraftRequest` of batch.h."""

    _fields_ = [
        ("counts", ctypes.POINTER(ctypes.c_int32)),
        ("min_probability", ctypes.POINTER(ctypes.c_float)),
        ("stride", ctypes.c_int64),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("probabilities", ctypes.POINTER(ctypes.c_float)),
        ("drafted", ctypes.POINTER(ctypes.c_int32)),
        ("target_tokens", ctypes.c_void_p),
        ("choices", ctypes.c_void_p),
    ]


class TopTokens(ctypes.Structure):
    """Mirrors `TopTokens` of batch.h."""

    _fields_ = [
        ("top", ctypes.c_int32),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("logs", ctypes.POINTER(ctypes.c_float)),
        ("log_sums", ctypes.POINTER(ctypes.c_float)),
        ("top_tokens", ctypes.POINTER(ctypes.c_int32)),
        ("top_logs", ctypes.POINTER(ctypes.c_float)),
    ]


class CSamplingRule(ctypes.Structure):
    """Mirrors `SamplingRule` of batch.h."""

    _fields_ = [
        ("temperature", ctypes.c_double),
        ("top_p", ctypes.c_double),
        ("min_p_distance", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("top_k", ctypes.c_int32),
        ("repetition_penalty", ctypes.c_float),
        ("presence_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
    ]


class CRowChoice(ctypes.Structure):
    """Mirrors `RowChoice` of batch.h."""

    _fields_ = [
        ("rule", ctypes.POINTER(CSamplingRule)),
        ("position", ctypes.c_int64),
        ("edits", ctypes.c_void_p),
        ("edit_count", ctypes.c_int64),
        ("mask", ctypes.c_void_p),
        ("logits", ctypes.c_void_p),
        ("following", ctypes.c_void_p),
        ("following_count", ctypes.c_int64),
    ]
