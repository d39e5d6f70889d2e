// What a model keeps: blocks of keys and values, the embedding table, and the checksum of packed weights.
#include <algorithm>
#include <set>

#include "workspace.h"

namespace check {
namespace {

// Blocks are zero at first, lie side by side, hold what is written to their ends, are copied whole, and are zero again
// when they were discarded, while their neighbours are not. Those of int8 have scales beside half the bytes of bf16.
void check_blocks(const Fixture& x, const char* name, Precision stored) {
    const Blocks blocks(x.model, 3, stored);
    CHECK(blocks.count() == 3 && blocks.precision() == stored && blocks.fits(*x.model), "%s: %ld", name,
          long(blocks.count()));
    CHECK(blocks.attention_precision() == (stored == INT8 ? attention_precision(*x.model) : stored), "%s", name);
    const int64_t element = stored == FP32   ? 4
                            : stored == BF16 ? 2
                                             : 1,
                  scale_bytes = stored == INT8 ? BLOCK_POSITIONS * 4 : 0;
    const int64_t key_bytes = BLOCK_POSITIONS * x.model->layers[0].attention.key_depth() * element,
                  value_bytes = BLOCK_POSITIONS * x.model->layers[0].attention.value_width() * element;
    const int64_t each = Blocks::bytes_each(*x.model, stored);
    CHECK(each == 4 * (key_bytes + value_bytes + 2 * scale_bytes), "%s: %ld bytes a block", name, long(each));
    std::set<uint8_t*> seen;
    const auto parts = [&](int32_t id, auto&& use) {
        for (int32_t layer = 0; layer < 2; layer++) {
            for (int32_t h = 0; h < 2; h++) {
                const KeyValueBlock block = blocks.at(id, layer, h);
                use(block.keys, size_t(key_bytes)), use(block.values, size_t(value_bytes));
                CHECK(!block.key_scales == (stored != INT8) && !block.value_scales == (stored != INT8), "%s: scales",
                      name);
                if (scale_bytes) use(reinterpret_cast<uint8_t*>(block.key_scales), size_t(scale_bytes));
                if (scale_bytes) use(reinterpret_cast<uint8_t*>(block.value_scales), size_t(scale_bytes));
            }
        }
    };
    const auto holds = [&](int32_t id, uint8_t value) {
        bool all = true;
        parts(id, [&](uint8_t* start, size_t size) {
            all &= std::all_of(start, start + size, [=](uint8_t v) { return v == value; });
        });
        return all;
    };
    for (int32_t id = 0; id < 3; id++) {
        CHECK(holds(id, 0), "%s: block %d is not empty", name, id);
        parts(id, [&](uint8_t* start, size_t size) {
            std::memset(start, 7 + id, size);
            CHECK(seen.insert(start).second, "%s: given twice", name);
        });
    }
    Pool pool(3, nullptr);
    blocks.copy(pool, 0, 2);
    CHECK(holds(0, 7) && holds(1, 8) && holds(2, 7), "%s: a copy", name);
    const int32_t ids[] = {2, 0};
    blocks.discard(ids, 2);
    CHECK(holds(1, 8), "%s: a neighbour of discarded blocks", name);
    const int32_t whole[] = {1, 0, 2};
    blocks.discard(whole, 3);
    CHECK(holds(0, 0) && holds(1, 0), "%s: discarded", name);
}

void check_blocks(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        const Fixture x(k, f, KINDS[0], 2);
        for (const Precision stored : {FP32, BF16, INT8}) {
            if (stored != FP32 || f.precision == FP32) check_blocks(x, f.name, stored);
        }
    }
}

// A layer that reads another one's keys and values takes nothing of a block: two layers of three have parts.
void check_shared_blocks(const KernelTable& k) {
    const Kind shared = {"shared", 0, [](UniformSpec& s) { s.layers = 3; }, false, share_first};
    const Kind own = {"own", 0, [](UniformSpec&) {}};
    for (const Format& f : FORMATS) {
        const Fixture x(k, f, shared, 1), y(k, f, own, 1);
        for (const Precision stored : {attention_precision(*y.model), INT8}) {
            const int64_t each = Blocks::bytes_each(*x.model, stored);
            CHECK(each == Blocks::bytes_each(*y.model, stored), "%s: %ld bytes a block", f.name, long(each));
        }
    }
}

// Each layer's part of a token's row, in the precision of the tables.
void check_per_layer_table(const KernelTable& k) {
    const Kind kind = {"tables", 0, [](UniformSpec& s) { s.per_layer_size = 21; }};
    for (const Format& f : FORMATS) {
        const Fixture x(k, f, kind, 2);
        const float tolerance = f.precision == FP32 ? 0 : 1.0f / 256;
        for (int32_t token = 0; token < VOCAB; token++) {
            for (int32_t layer = 0; layer < 2; layer++) {
                Buffer<float> row(21);
                x.model->embed_for_layer(token, layer, row.data());
                for (size_t i = 0; i < 21; i++) {
                    const float stored = x.per_layer_table[size_t(token * 42 + layer * 21) + i];
                    CHECK(std::abs(row[i] - stored) <= tolerance * std::abs(stored), "%s: token %d, layer %d", f.name,
                          token, layer);
                }
            }
        }
    }
}

void check_embedding(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        for (const Kind& kind : KINDS) {
            const Fixture x(k, f, kind, 2);
            const size_t width = size_t(x.model->spec.embedding_size);
            for (int32_t token = 0; token < VOCAB; token++) {
                Buffer<float> row(width);
                x.model->embed(token, row.data());
                for (size_t i = 0; i < width; i++) {
                    const float expected =
                        rounded(f.precision == FP32 ? FP32 : BF16, x.table[size_t(token) * width + i]);
                    CHECK(row[i] == expected, "%s, %s, token %d: %g != %g", f.name, kind.name, token, double(row[i]),
                          double(expected));
                }
            }
        }
    }
}

// The checksum does not depend on the threads, and every byte counts.
void check_checksum() {
    Random random(9);
    Pool one(1, nullptr), three(3, nullptr);
    for (const int64_t size : {1L, 31L, 32L, 1000L, (1L << 20) - 1, (3L << 20) + 17}) {
        Buffer<uint8_t> data(static_cast<size_t>(size));
        for (size_t i = 0; i < data.size(); i++) data[i] = uint8_t(random.below(256));
        const uint64_t sum = checksum(one, data.data(), size);
        CHECK(sum == checksum(three, data.data(), size), "%ld bytes by three threads", long(size));
        CHECK(size == 1 || sum != checksum(one, data.data(), size - 1), "%ld bytes: the last does not count",
              long(size));
        for (int round = 0; round < 20; round++) {
            const size_t at = round == 0 ? 0 : round == 1 ? data.size() - 1 : size_t(random.below(int(size)));
            const uint8_t bit = uint8_t(1 << random.below(8));
            data[at] ^= bit;
            CHECK(sum != checksum(one, data.data(), size), "byte %zu of %ld does not count", at, long(size));
            data[at] ^= bit;
        }
        CHECK(sum == checksum(one, data.data(), size), "%ld bytes again", long(size));
    }
}

}  // namespace

void test_model_memory(const KernelTable& k) {
    for (const Format& f : FORMATS) {
        for (const Kind& kind : KINDS) {
            const int threads = f.precision == BF16 ? 1 : 3;
            Fixture x(k, f, kind, threads, threads > 1 ? 2 : 1);
            check_workspace(x, f, kind.name);
        }
    }
    check_blocks(k);
    check_shared_blocks(k);
    check_per_layer_table(k);
    check_embedding(k);
    check_checksum();
}

}  // namespace check
