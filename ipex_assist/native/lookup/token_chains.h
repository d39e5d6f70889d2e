// Text by what came before: where the last few tokens of a text occurred earlier, and what followed there.
#pragma once
#include <cstdint>
#include <vector>

namespace ipex_assist {

// A place where the last `length` tokens of a text occurred; `position` is the one after them.
struct Match {
    int64_t position;
    int32_t length;
};

// Tokens, and for each n-gram a chain of its places, the latest first, as LZ77's hash chains (Deflate, RFC 1951). Of
// long n-grams as well as of short ones, since what a short one finds first may be the wrong one of many. 28 bytes a
// token at most. One that keeps `most` tokens forgets the oldest.
class TokenChains {
public:
    static constexpr int32_t SEPARATOR = -1;  // between texts: no match goes over it
    static constexpr int32_t LONGEST = 64;    // tokens compared; a longer match is as good as certain
    static constexpr int32_t NGRAMS[] = {6, 2, 1};
    static constexpr int32_t PLACES = 32;  // of each n-gram, looked at

    // most: tokens kept; 0: all.
    explicit TokenChains(int64_t most = 0);

    void append(const int32_t* tokens, int64_t count);
    int64_t size() const { return size_; }  // appended so far, also those forgotten
    int64_t bytes() const;

    // The token at a position; SEPARATOR for one that was forgotten or has not come.
    int32_t at(int64_t position) const {
        if (position >= size_ || position < oldest()) return SEPARATOR;
        return tokens_[slot(position)];
    }

    // Adds the places where the last of `text` occurred and something followed; text: at most LONGEST tokens.
    void find(const std::vector<int32_t>& text, std::vector<Match>& found) const;

    std::vector<int32_t> last() const;  // tokens, at most LONGEST

private:
    static constexpr int LEVELS = int(sizeof NGRAMS / sizeof *NGRAMS);

    struct Chains {
        std::vector<uint32_t> latest;    // by hash: the position after the last such n-gram, 0: none
        std::vector<uint32_t> previous;  // by slot: the position after the one before it
    };

    int64_t oldest() const { return size_ > int64_t(tokens_.size()) ? size_ - int64_t(tokens_.size()) : 0; }
    int64_t slot(int64_t position) const { return position >= lap_ ? position - lap_ : position - lap_ + kept_; }
    int64_t earlier(uint32_t position) const { return size_ - int64_t(uint32_t(size_) - position); }
    void grow(int64_t size);
    void link(int64_t position);

    int64_t most_;
    int64_t size_ = 0;
    int64_t kept_ = 0;  // slots
    int64_t lap_ = 0;   // the position in slot 0
    std::vector<int32_t> tokens_;
    Chains chains_[LEVELS];
};

// Drafts up to `k` tokens for the text of the first index, from all places in the indexes where its end occurred, and
// returns how many. Each place votes for the token that follows there, and those that are outvoted are left out from
// then on. A vote is the third power of the match's length, four times as much at the first place of an index (of the
// longest n-gram, the latest), and a sixteenth outside of the text itself, where names differ more often. The confidence
// is the winner's part of the votes, with one vote more for what nobody knows. Past its end the first index goes on with
// the draft, so that periodic text repeats.
int32_t draft_from(const std::vector<const TokenChains*>& indexes, int32_t k, int32_t* tokens, float* confidence);

}  // namespace ipex_assist
