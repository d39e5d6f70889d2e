// The threads of a run by memory node, and how nodes share what is kept in blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ipex_assist {

class TeamNodes {
public:
    // nodes: the memory node of each thread of the pool, ascending from 0 on, empty for one; may be longer than
    // `threads`, the number of the pool's first threads that run.
    TeamNodes(int threads, const std::vector<int32_t>& nodes);

    int threads() const { return first_.back(); }
    int nodes() const { return int(first_.size()) - 1; }
    bool several() const { return nodes() > 1; }
    int first_thread(int node) const { return first_[size_t(node)]; }  // of one more than there are: threads()
    int threads_of(int node) const { return first_thread(node + 1) - first_thread(node); }
    int node(int thread) const;

    // Which node has a block's part of a KV head: who writes and reads it is one of its threads. Each node has as many
    // whole heads as every other where that is possible; else the blocks of a head go round some of the nodes, or,
    // where nodes differ in threads, heads of blocks go round all of them in proportion to these.
    int home(int64_t block, int32_t head, int32_t heads) const;
    bool even() const { return even_; }  // whether nodes have about as many threads as each other
    // Whether each node has whole heads. Then head h is on node h · nodes ÷ heads.
    bool has_whole_heads(int32_t heads) const { return even_ && heads % nodes() == 0; }

private:
    std::vector<int> first_;  // each node's first thread, and the number of threads
    bool even_;
    std::vector<int> rounds_;  // where they have not: a node for each thread, each node's evenly spread
};

}  // namespace ipex_assist
