// What callers can get wrong, refused with std::invalid_argument before any memory is touched.
#include "checks.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <stdexcept>

namespace ipex_assist {

void refuse(const char* format, ...) {
    char message[400];
    va_list values;
    va_start(values, format);
    std::vsnprintf(message, sizeof message, format, values);
    va_end(values);
    throw std::invalid_argument(message);
}

namespace {

// Sizes of a model, each and their products, stay far below what 64 bits hold.
constexpr int64_t LARGEST = 1 << 24, MOST_LAYERS = 4096;

void check_range(const char* name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
        refuse("%s is %lld and must be from %lld to %lld", name, static_cast<long long>(value),
               static_cast<long long>(least), static_cast<long long>(most));
    }
}

void check_heads(const Spec& s) {
    check_range("num_attention_heads", s.heads, 1, LARGEST);
    check_range("num_key_value_heads", s.kv_heads, 1, LARGEST);
    check_range("head_dim", s.head_dim, 1, LARGEST);
    check_range("num_attention_heads x head_dim", int64_t(s.heads) * s.head_dim, 1, LARGEST);
    if (s.heads % s.kv_heads) {
        refuse("%d attention heads cannot share %d key/value heads evenly", s.heads, s.kv_heads);
    }
    if (!s.positions && s.head_dim % 2) refuse("head_dim is %d: rotary positions turn halves of a head, so it must be even", s.head_dim);
}

void check_formats(const Spec& s) {
    check_range("precision", s.precision, FP32, INT4);
    check_range("outer_precision", s.outer_precision, FP32, INT4);
    check_range("activation", s.activation, SILU, GELU_TANH);
    const bool int4 = s.precision == INT4 || s.outer_precision == INT4;
    if (int4 && s.group != 32 && s.group != 64 && s.group != 128) refuse("groups of %d columns in int4: they have 32, 64 or 128", s.group);
    const bool head_is_table = s.tied_head && (s.precision == FP32 || s.precision == BF16);
    if (head_is_table && s.outer_precision != s.precision) refuse("a head that is the embedding has its precision, too");
    if (!std::isfinite(s.norm_eps) || s.norm_eps < 0) refuse("the norms' epsilon is %g and must be a number from 0 on", double(s.norm_eps));
    if (!std::isfinite(s.attention_scale)) refuse("the attention scale is %g and must be a number", double(s.attention_scale));
}

}  // namespace

const Spec& checked(const Spec& s, const int32_t* windows) {
    check_range("num_hidden_layers", s.layers, 1, MOST_LAYERS);
    check_range("vocab_size", s.vocab_size, 1, LARGEST);
    check_range("hidden_size", s.hidden_size, 1, LARGEST);
    check_range("intermediate_size", s.intermediate_size, 1, LARGEST);
    check_range("embedding_size", s.embedding_size, 1, LARGEST);
    check_range("rows of the position table", s.positions, 0, LARGEST);
    check_range("position_offset", s.position_offset, 0, LARGEST);
    check_heads(s);
    check_formats(s);
    if (!s.projected_embedding && s.embedding_size != s.hidden_size) {
        refuse("an embedding of %d for a hidden size of %d needs projections", s.embedding_size, s.hidden_size);
    }
    for (int32_t i = 0; i < s.layers; i++) check_range("an attention window", windows[i], 0, INT32_MAX);
    return s;
}

namespace {

void check_sizes(const Model& model, const Batch& b, int32_t further) {
    const int32_t vocabulary = model.spec.vocab_size;
    check_range("rows of a pass", b.rows, 1, LARGEST);
    check_range("rows whose logits are wanted", b.last, 0, b.rows);
    check_range("tokens drafted behind a pass", further, 0, LARGEST);
    check_range("the vocabulary that is wanted", b.vocabulary, 0, vocabulary);
    if (!b.tokens || !b.positions || !b.caches) refuse("a pass needs tokens, positions and caches");
    if (b.last == 0) return;
    const int64_t columns = (int64_t(b.vocabulary > 0 ? b.vocabulary : vocabulary) + LANES - 1) / LANES * LANES;
    if (!b.logits || b.stride < columns) {
        refuse("logits of %lld columns for a vocabulary that takes %lld", static_cast<long long>(b.logits ? b.stride : 0),
               static_cast<long long>(columns));
    }
}

// The position of `row` up to the last that is drafted behind it is in its cache and in the position tables.
void check_position(const Model& model, const Batch& b, int32_t row, int64_t last) {
    const Spec& s = model.spec;
    const int32_t position = b.positions[row];
    if (position < 0 || last >= b.caches[row]->positions()) {
        refuse("row %d is at position %lld of a sequence with room for %lld", row, static_cast<long long>(position < 0 ? position : last),
               static_cast<long long>(b.caches[row]->positions()));
    }
    if (s.positions && last + s.position_offset >= s.positions) {
        refuse("row %d is at position %lld, and the model has %d", row, static_cast<long long>(last), s.positions - s.position_offset);
    }
    if (!s.positions && (position < b.table_start || last - b.table_start >= b.table_rows)) {
        refuse("row %d is at position %lld, and the rotation table holds %d from %d on", row, static_cast<long long>(last),
               b.table_rows, b.table_start);
    }
}

}  // namespace

const Batch& checked(const Model& model, const Batch& b, int32_t further) {
    if (!model.ready()) {
        if (!model.image()) refuse("the model has no weights yet");
        refuse("%lld of the model's weights are not packed yet", static_cast<long long>(model.missing()));
    }
    check_sizes(model, b, further);
    if (!model.spec.positions && !(b.cosine && b.sine)) refuse("rotary positions need their tables");
    std::vector<const Cache*> sequences;
    for (int32_t r = 0; r < b.rows; r++) {
        if (b.tokens[r] < 0 || b.tokens[r] >= model.spec.vocab_size) {
            refuse("token id %d of a vocabulary of %d", b.tokens[r], model.spec.vocab_size);
        }
        if (!b.caches[r]) refuse("row %d has no sequence", r);
        const bool first = r == 0 || b.caches[r] != b.caches[r - 1];
        if (first) {
            if (!b.caches[r]->fits(model)) refuse("row %d has the sequence of another model", r);
            sequences.push_back(b.caches[r]);
        } else if (b.positions[r] != int64_t(b.positions[r - 1]) + 1) {
            refuse("rows %d and %d of one sequence are at positions %d and %d", r - 1, r, b.positions[r - 1], b.positions[r]);
        }
        check_position(model, b, r, int64_t(b.positions[r]) + (r + 1 == b.rows ? std::max(0, further - 1) : 0));
    }
    std::sort(sequences.begin(), sequences.end());
    if (std::adjacent_find(sequences.begin(), sequences.end()) != sequences.end()) {
        refuse("rows of one sequence are not side by side");
    }
    return b;
}

}  // namespace ipex_assist
