// The threads of a run by memory node, and how nodes share what is kept in blocks.
#include "threads/team_nodes.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ipex_assist {

TeamNodes::TeamNodes(int threads, const std::vector<int32_t>& nodes) {
    for (int t = 0; t < threads; t++) {
        if (t == 0 || (!nodes.empty() && nodes[size_t(t)] != nodes[size_t(t) - 1])) first_.push_back(t);
    }
    first_.push_back(threads);
    int least = threads, most = 0;
    for (int node = 0; node < this->nodes(); node++) {
        least = std::min(least, threads_of(node)), most = std::max(most, threads_of(node));
    }
    even_ = most * 8 <= least * 9;  // a core that is offline changes nothing
    if (even_) return;
    // Of n threads of a node, the i-th is at (i + ½) ÷ n of the round.
    std::vector<std::pair<double, int>> places;
    for (int node = 0; node < this->nodes(); node++) {
        for (int i = 0; i < threads_of(node); i++) places.push_back({(i + 0.5) / threads_of(node), node});
    }
    std::sort(places.begin(), places.end());
    for (const auto& [place, node] : places) rounds_.push_back(node);
}

int TeamNodes::node(int thread) const {
    return int(std::upper_bound(first_.begin(), first_.end(), thread) - first_.begin()) - 1;
}

int TeamNodes::home(int64_t block, int32_t head, int32_t heads) const {
    if (!several()) return 0;
    if (!even_) return rounds_[size_t((block * heads + head) % threads())];
    const int groups = std::gcd(heads, nodes());  // of heads, and of nodes that share them
    const int heads_each = heads / groups, nodes_each = nodes() / groups;
    return head / heads_each * nodes_each + int((block * heads_each + head % heads_each) % nodes_each);
}

}  // namespace ipex_assist
