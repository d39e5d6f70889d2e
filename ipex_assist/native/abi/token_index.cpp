// The C interface: indexes of tokens, and drafts from them.
#include "abi/handle.h"
#include "lookup/token_chains.h"

using namespace ipex_assist;

// most: tokens kept, 0: all.
IPEX_ASSIST_API void* ia_index_new(int64_t most) {
    return guarded<void*>(nullptr, [&] { return new TokenChains(most); });
}

IPEX_ASSIST_API void ia_index_delete(void* index) { delete static_cast<TokenChains*>(index); }
IPEX_ASSIST_API int64_t ia_index_bytes(void* index) { return static_cast<TokenChains*>(index)->bytes(); }

IPEX_ASSIST_API int32_t ia_index_append(void* index, const int32_t* tokens, int64_t count) {
    return guarded(-1, [&] {
        static_cast<TokenChains*>(index)->append(tokens, count);
        return 0;
    });
}

// Drafts for the text of the first index; returns how many tokens, at most `k`.
IPEX_ASSIST_API int32_t ia_index_draft(const TokenChains* const* indexes, int32_t number, int32_t k, int32_t* tokens,
                                       float* confidence) {
    return guarded(-1, [&] { return draft_from({indexes, indexes + number}, k, tokens, confidence); });
}
