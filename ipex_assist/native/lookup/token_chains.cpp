#include "lookup/token_chains.h"

#include <algorithm>

namespace ipex_assist {

namespace {

constexpr int32_t WALKED = 4 * TokenChains::PLACES;  // places of a chain, with those of other n-grams of the same hash

uint32_t hash_of(const int32_t* tokens, int32_t count) {
    uint64_t hash = 0;
    for (int32_t i = 0; i < count; i++) hash = (hash + uint32_t(tokens[i])) * 0x9E3779B97F4A7C15u;
    return uint32_t(hash >> 32);
}

}  // namespace

TokenChains::TokenChains(int64_t most) : most_(most) {}

int64_t TokenChains::bytes() const {
    size_t words = tokens_.capacity();
    for (const Chains& chains : chains_) words += chains.latest.capacity() + chains.previous.capacity();
    return int64_t(words * sizeof(int32_t));
}

void TokenChains::append(const int32_t* tokens, int64_t count) {
    if (most_ && count > most_) tokens += count - most_, count = most_;
    if (size_ + count > kept_ && (!most_ || kept_ < most_)) grow(size_ + count);
    for (int64_t i = 0; i < count; i++) {
        if (size_ - lap_ == kept_) lap_ += kept_;
        tokens_[size_t(size_ - lap_)] = tokens[i];
        size_++;
        link(size_);
    }
}

// Makes room for `size` tokens at least, and chains again those that are there.
void TokenChains::grow(int64_t size) {
    kept_ = std::max(size, kept_ + kept_ / 2);
    if (most_) kept_ = std::min(kept_, most_);
    size_t hashes = 64;
    while (int64_t(hashes) * 2 <= kept_) hashes *= 2;
    tokens_.reserve(size_t(kept_));
    tokens_.resize(size_t(kept_));
    for (Chains& chains : chains_) {
        chains.previous.reserve(size_t(kept_));
        chains.previous.resize(size_t(kept_));
        chains.latest.assign(hashes, 0);
    }
    for (int64_t position = 1; position <= size_; position++) link(position);
}

// Enters the n-grams that end before `position`.
void TokenChains::link(int64_t position) {
    for (int level = 0; level < LEVELS; level++) {
        const int32_t n = NGRAMS[level];
        if (position - oldest() < n) continue;
        int32_t ngram[*NGRAMS];
        for (int32_t i = 0; i < n; i++) ngram[i] = tokens_[size_t(slot(position - n + i))];
        Chains& chains = chains_[level];
        uint32_t& latest = chains.latest[hash_of(ngram, n) & (chains.latest.size() - 1)];
        chains.previous[size_t(slot(position - 1))] = latest;
        latest = uint32_t(position);
    }
}

std::vector<int32_t> TokenChains::last() const {
    std::vector<int32_t> tokens;
    for (int64_t i = std::max(oldest(), size_ - LONGEST); i < size_; i++) tokens.push_back(at(i));
    return tokens;
}

void TokenChains::find(const std::vector<int32_t>& text, std::vector<Match>& found) const {
    const int64_t count = int64_t(text.size());
    const int32_t* end = text.data() + count;
    int32_t known = LONGEST + 1;  // longer matches were found by a longer n-gram
    for (int level = 0; level < LEVELS; level++) {
        const int32_t n = NGRAMS[level];
        if (count < n || !kept_) continue;
        const Chains& chains = chains_[level];
        uint32_t next = chains.latest[hash_of(end - n, n) & (chains.latest.size() - 1)];
        int64_t last = size_ + 1;
        for (int32_t walked = 0, places = 0; next && walked < WALKED && places < PLACES; walked++) {
            const int64_t position = earlier(next);
            if (position >= last || position <= oldest()) break;  // of a place that was overwritten
            last = position;
            next = chains.previous[size_t(slot(position - 1))];
            if (position == size_) continue;
            const int64_t longest = std::min<int64_t>({LONGEST, count, position - oldest()});
            int32_t length = 0;
            while (length < longest && tokens_[size_t(slot(position - 1 - length))] == end[-1 - length]) length++;
            if (length < n || length >= known) continue;
            found.push_back({position, length});
            places++;
        }
        known = n;
    }
}

int32_t draft_from(const std::vector<const TokenChains*>& indexes, int32_t k, int32_t* tokens, float* confidence) {
    struct Place {
        const TokenChains* index;
        int64_t position;
        float vote;
        int32_t next;
    };
    struct Sum {
        int32_t token;
        float votes;
    };
    const TokenChains& own = *indexes[0];
    const std::vector<int32_t> text = own.last();
    std::vector<Match> found;
    std::vector<Place> places;
    for (const TokenChains* index : indexes) {
        found.clear();
        index->find(text, found);
        float factor = index == &own ? 4.0f : 0.25f;
        for (const Match& match : found) {
            const float length = float(match.length);
            places.push_back({index, match.position, length * length * length * factor, 0});
            factor = index == &own ? 1.0f : 0.0625f;
        }
    }
    int32_t count = 0;
    std::vector<Sum> sums;
    for (; count < k && !places.empty(); count++) {
        sums.clear();
        float all = 1;
        for (Place& place : places) {
            const int64_t past = place.position - own.size();
            place.next = place.index == &own && past >= 0 ? tokens[past] : place.index->at(place.position);
            place.position++;
            if (place.next == TokenChains::SEPARATOR) continue;
            all += place.vote;
            const auto sum =
                std::find_if(sums.begin(), sums.end(), [&](const Sum& each) { return each.token == place.next; });
            if (sum == sums.end()) sums.push_back({place.next, place.vote});
            else sum->votes += place.vote;
        }
        if (sums.empty()) break;
        const Sum best =
            *std::max_element(sums.begin(), sums.end(), [](const Sum& a, const Sum& b) { return a.votes < b.votes; });
        tokens[count] = best.token;
        confidence[count] = best.votes / all;
        places.erase(
            std::remove_if(places.begin(), places.end(), [&](const Place& place) { return place.next != best.token; }),
            places.end());
    }
    return count;
}

}  // namespace ipex_assist
