// Mixers that scan rows over a state of fixed size: what their kinds differ in, and their operations.
#pragma once
#include "mixers/recurrent_rows.h"

namespace ipex_assist {

enum OutputGate { SILU_THEN_NORM, NORM_THEN_SILU, NORM_THEN_SIGMOID };

struct ScanKind {
    bool delta = false;             // values are corrected by what the state recalls; a row has betas
    bool decays_by_key = false;     // a decay for each channel of a head's keys, else one for each head
    bool steps_by_channel = false;  // a step for each channel of values, and a decay for each element of the state
    OutputGate gate = SILU_THEN_NORM;
};

const ScanKind& scan_kind(const RecurrentSpec& spec);

// Of the norm behind the scan: its weights, and the values that are normalised together; 0: there is none.
int64_t norm_weights(const RecurrentSpec& spec);
int64_t norm_size(const RecurrentSpec& spec);

// Columns of a row after the convolution: heads of queries from 0 on, of keys and values, padded to 16; decays; betas.
// Decays by key are heads like the keys, and keys times decays, which recall, follow them. Steps by channel are in the
// place of decays.
struct ScanColumns {
    explicit ScanColumns(const RecurrentSpec& spec);

    int64_t key, value, decay, recall, beta, width;
};

// scan.cpp
void gates_linear(Pass& pass, const LayerStep& step, int thread);
void prepare_scan(Pass& pass, const LayerStep& step, int thread);
void scan(Pass& pass, const LayerStep& step, int thread);
void gate_scanned(Pass& pass, const LayerStep& step, int thread);

// selection.cpp
void convolve_values(Pass& pass, const LayerStep& step, int thread);
void low_linear(Pass& pass, const LayerStep& step, int thread);
void normalize_low(Pass& pass, const LayerStep& step, int thread);
void prepare_channels(Pass& pass, const LayerStep& step, int thread);

}  // namespace ipex_assist
