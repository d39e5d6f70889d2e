// A LoRA adapter (Hu et al. 2021, arXiv:2106.09685) of a model: what it adds to some of its linears.
#pragma once
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "packing/model.h"

namespace ipex_assist {

constexpr int64_t MOST_RANK = 256;

// What is added to the columns of one of a checkpoint's matrices: B · (A · x).
struct AdapterPart {
    Linear a{};         // of `rank` columns, padded to 16, in a precision that takes the rows of `to`
    int64_t first_low;  // its first among the columns of A · x of all parts of the linear
    int64_t rank;
    PackTarget to;
    LowRankPanel b{};  // of the first panel of `to`; the others follow

    int64_t panels() const { return (to.columns + LANES - 1) / LANES; }
    LowRankPanel panel(int64_t i) const;
    // Which of its panels, [first, second), are among panels first <= b < last of the linear.
    std::pair<int64_t, int64_t> between(int64_t first, int64_t last) const;
};

class Adapter {
public:
    explicit Adapter(std::shared_ptr<const PackedModel> model);

    // Packs a (rank, width) and b (columns, rank) for one of the model's weights, which scale · b · a is added to.
    // False where there is no such weight of a linear of attention or of a plain MLP, of that shape. Throws
    // std::invalid_argument for a rank that no adapter may have, and for a weight that has its part already.
    struct Matrices {
        const float *a, *b;
        int64_t rank, columns, width;
        float scale;
    };
    bool pack(Pool& pool, std::string_view name, const Matrices& matrices);

    const std::vector<AdapterPart>& parts(int32_t layer, LinearRole role) const {
        return layers_[size_t(layer)][size_t(role)];
    }
    bool is_of(const PackedModel& model) const { return model_.get() == &model; }
    int64_t low_columns() const { return low_columns_; }  // of A · x, of the linear that has the most of them
    int64_t bytes() const { return bytes_; }

private:
    uint8_t* take(const Pool& pool, int64_t bytes);
    void pack_a(const Pool& pool, AdapterPart& part, const Matrices& matrices);
    void pack_b(Pool& pool, AdapterPart& part, const Matrices& matrices) const;

    std::shared_ptr<const PackedModel> model_;
    std::vector<std::array<std::vector<AdapterPart>, LINEAR_ROLES>> layers_;
    std::vector<Memory> memory_;
    uint8_t* free_ = nullptr;  // what is left of the last of them
    int64_t free_bytes_ = 0, low_columns_ = 0, bytes_ = 0;
};

}  // namespace ipex_assist
