// What there is to know of a model's weights by their list.
#include "packing/weights.h"

#include <algorithm>

#include "memory/round_up.h"
#include "packing/weight_list.h"

namespace ipex_assist {
namespace {

constexpr std::string_view WEIGHT = ".weight", BIAS = ".bias";

std::string place_name(const char* place, int32_t number) {
    return place + (number < 0 ? std::string(".") : "." + std::to_string(number) + ".");
}

// Where the weight of a name goes.
class Finder final : public WeightList {
public:
    explicit Finder(std::string_view name) : rest_(name) {}
    const Weight& found() const { return found_; }

    void linear(Linear& to, const LinearShape& shape, std::initializer_list<LinearPart> parts) override {
        for (const LinearPart& part : parts) {
            const bool matrix = is(part, WEIGHT), bias = shape.bias && part.biased && is(part, BIAS);
            if (!matrix && !bias) continue;
            const int64_t width = part.width ? part.width : shape.width;
            note(part.columns, matrix ? width : 1);
            found_.part = {&to, part.first, part.step, part.columns, width};
            found_.is_bias = bias;
        }
    }
    void vector(const float*& to, const VectorShape& shape, bool bias) override {
        const int64_t size = shape.parts ? shape.size / shape.parts : shape.size;
        for (int32_t i = 0; i < std::max(shape.parts, 1); i++) {
            const std::string name = shape.parts ? shape.name + ("_" + std::to_string(i)) : shape.name;
            if (!is(name, bias ? BIAS : WEIGHT)) continue;
            note(size, 1);
            found_.vector = const_cast<float*>(to) + i * size;
            found_.form = shape.form;
        }
    }
    void table(const uint8_t*& to, const char* name, int64_t rows, int64_t columns) override {
        if (!is(name, WEIGHT)) return;
        note(rows, columns);
        found_.table = const_cast<uint8_t*>(to);
    }

private:
    bool is(std::string_view name, std::string_view kind) const {
        return rest_.size() == name.size() + kind.size() && rest_.substr(0, name.size()) == name &&
               rest_.substr(name.size()) == kind;
    }
    bool is(const LinearPart& part, std::string_view kind) const { return part.name && is(part.name, kind); }
    void note(int64_t rows, int64_t columns) {
        found_.rows = rows, found_.columns = columns;
        found_.layer = layer_;
    }
    bool enter(const char* place, int32_t number) override {
        const std::string begin = place_name(place, number);
        if (rest_.substr(0, begin.size()) != begin) return false;
        before_.push_back(rest_);
        rest_.remove_prefix(begin.size());
        if (before_.size() == 1) layer_ = number;
        return true;
    }
    void leave() override {
        rest_ = before_.back();
        before_.pop_back();
        if (before_.empty()) layer_ = -1;
    }

    std::string_view rest_;  // of the name, within what was entered
    std::vector<std::string_view> before_;
    int32_t layer_ = -1;
    Weight found_;
};

// The names of all weights.
class Namer final : public WeightList {
public:
    std::unordered_set<std::string> names;

    void linear(Linear&, const LinearShape& shape, std::initializer_list<LinearPart> parts) override {
        for (const LinearPart& part : parts) {
            if (part.name) add(part.name, WEIGHT);
            if (part.name && shape.bias && part.biased) add(part.name, BIAS);
        }
    }
    void vector(const float*&, const VectorShape& shape, bool bias) override {
        if (!shape.parts) add(shape.name, bias ? BIAS : WEIGHT);
        for (int32_t i = 0; i < shape.parts; i++) add(shape.name + ("_" + std::to_string(i)), bias ? BIAS : WEIGHT);
    }
    void table(const uint8_t*&, const char* name, int64_t, int64_t) override { add(name, WEIGHT); }

private:
    void add(const std::string& name, std::string_view kind) { names.insert(place_ + name + std::string(kind)); }
    bool enter(const char* place, int32_t number) override {
        before_.push_back(place_.size());
        place_ += place_name(place, number);
        return true;
    }
    void leave() override {
        place_.resize(before_.back());
        before_.pop_back();
    }

    std::string place_;
    std::vector<size_t> before_;
};

class LinearCollector final : public WeightList {
public:
    std::vector<const Linear*> linears;

    void linear(Linear& to, const LinearShape&, std::initializer_list<LinearPart>) override { linears.push_back(&to); }
    void vector(const float*&, const VectorShape&, bool) override {}
    void table(const uint8_t*&, const char*, int64_t, int64_t) override {}
};

// Lists the weights of a model that the visitor does not change.
template <class Visitor>
Visitor& visit(Visitor&& visitor, const ModelWeights& weights) {
    list_weights(visitor, const_cast<ModelWeights&>(weights));
    return visitor;
}

}  // namespace

ModelWeights::ModelWeights(const ModelSpec& spec_, const LayerSpec* specs, WeightFormats formats_)
    : spec(spec_),
      formats(std::move(formats_)) {
    if (spec.altup.several()) stream_projections.resize(size_t(spec.altup.count) - 1);
    layers.resize(size_t(spec.layers));  // whose norms and linears are pointed to
    for (size_t i = 0; i < layers.size(); i++) {
        static_cast<LayerSpec&>(layers[i]) = specs[i];
        layers[i].input_width = spec.mixer_input_width(specs[i], int64_t(i));
        layers[i].columns = mixer_columns(specs[i]);
        if (layers[i].mlp.experts) layers[i].experts.resize(size_t(layers[i].mlp.count()));
    }
}

Weight ModelWeights::find(std::string_view name) const { return visit(Finder(name), *this).found(); }

std::unordered_set<std::string> ModelWeights::names() const { return std::move(visit(Namer(), *this).names); }

std::vector<const Linear*> ModelWeights::linears() const { return std::move(visit(LinearCollector(), *this).linears); }

const float* ModelWeights::position_row(int32_t position) const {
    return positions ? positions + int64_t(position + spec.position_offset) * spec.hidden_size : nullptr;
}

bool ModelWeights::keeps_state() const {
    for (const PackedLayer& layer : layers) {
        const LatentSpec& latent = layer.attention.latent;
        if (layer.is_recurrent() || latent.is_compressed() || latent.open_rows()) return true;
    }
    return false;
}

}  // namespace ipex_assist
