// Where a model's weights lie: in the image, which is the same on every machine, and in memory.
//
// Where all threads are on one memory node, memory is the image. Else the panels of all linears that the threads of a
// node compute (slice) lie one after the other, from a huge-page boundary on, so that no page holds those of two nodes;
// everything else lies before them, in the order of the image.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "packing/weight_list.h"
#include "threads/pool.h"

namespace ipex_assist {

class ImageLayout final : private WeightList {
public:
    // Bytes of the image that lie side by side in memory, too.
    struct Piece {
        int64_t start, bytes;
        uint8_t* at;
        int node;  // -1: all read it
    };

    // Divides memory among the nodes of a pool's threads; null: it stays in one part.
    void divide(const Pool* pool);
    bool divided() const { return !node_threads_.empty(); }
    // Whether the panels of slices lie on the nodes of this pool's threads.
    bool follows(const Pool& pool) const;
    TeamNodes team() const;  // these threads; one where memory is in one part
    // A node's first thread; of one more than there are, the number of threads.
    int first_thread(int node) const { return node_threads_[size_t(node)]; }
    // Places a model's weights, in the order of their list, from `start` on; null counts bytes. LAYOUT_VERSION in
    // executors/packed_cache.py changes with it, and with the order of the list.
    void place(ModelWeights& weights, uint8_t* start);
    // Of divided memory, after a `place` from null: bytes of all nodes, each from a huge-page boundary on, which the
    // next `place` takes.
    int64_t reserve_nodes();
    // Lets that memory come from these nodes (prefer_node). False where the system refuses.
    bool prefer_nodes(uint8_t* start, int64_t bytes) const;
    int32_t node_number(int node) const { return node_numbers_[size_t(node)]; }  // the system's, -1: not known

    int64_t bytes() const { return bytes_; }                      // of the image
    int64_t common_bytes() const { return bytes_ - elsewhere_; }  // of these, what is not panels on nodes
    const std::vector<Piece>& pieces() const { return pieces_; }  // all of the image, in its order

private:
    // The formats of a linear's panels and where they begin.
    struct PanelList {
        std::vector<Precision> formats;
        std::vector<int64_t> offsets;
        MixedPanels panels;
    };

    const uint8_t* take(int64_t bytes, int64_t alignment);
    bool enter(const char* place, int32_t number) override;
    void leave() override { places_.pop_back(); }
    bool is_cached() const;
    void choose_formats(Linear& to, const LinearShape& shape, std::initializer_list<LinearPart> parts);
    void end_piece();
    void place_on_nodes(Linear& linear);
    const float* floats(int64_t size) { return reinterpret_cast<const float*>(take(size * 4, 64)); }
    void linear(Linear& to, const LinearShape& shape, std::initializer_list<LinearPart> parts) override;
    void vector(const float*& to, const VectorShape& shape, bool /*bias*/) override { to = floats(shape.size); }
    void table(const uint8_t*& to, const char* name, int64_t rows, int64_t columns) override;

    const ModelWeights* weights_ = nullptr;  // that are laid out
    std::vector<std::string> places_;        // that were entered, each the whole beginning of names
    std::vector<std::unique_ptr<PanelList>> mixed_;
    int64_t bytes_ = 0, elsewhere_ = 0;    // and of these, panels on nodes
    uintptr_t base_ = 0;                   // of the image while it is laid out
    std::vector<int> node_threads_;        // each node's first thread, and the number of threads; empty: one node
    std::vector<int32_t> node_numbers_;    // the system's
    std::vector<uintptr_t> node_offsets_;  // of each node's panels from the start
    std::vector<uintptr_t> node_at_;       // where the next panels of each node go while it is laid out
    std::vector<std::vector<NodePanels>> node_panels_;  // Linear::nodes
    std::vector<Piece> pieces_;
};

}  // namespace ipex_assist
