// That the buffers of passes are planned to the byte.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "operations/workspace.h"
#include "small_model.h"

namespace check {
namespace {

// What is planned for passes of up to 20 rows is what the largest of them take, to the byte.
inline void check_workspace(Fixture& x, const char* name, const States* states) {
    constexpr int32_t CONTEXT = 200, ROWS = 20;
    const std::unique_ptr<Program> program = std::make_unique<Program>(*x.model);
    for (const int32_t wanted : {0, 5, ROWS}) {
        Activations activations;
        const auto place = [&](int32_t segments, int32_t rows, int32_t pending) {
            x.taken = 0;
            std::vector<Table> tables;
            for (int32_t i = 0; i < segments; i++) tables.emplace_back(x, CONTEXT);
            std::vector<int32_t> positions;
            std::vector<const Table*> of_rows;
            for (int32_t i = 0; i < segments * rows; i++) {
                positions.push_back(CONTEXT - rows + i % rows);
                of_rows.push_back(&tables[size_t(i / rows)]);
            }
            std::vector<float> logits(positions.size() * 64);
            PassRequest made = x.make_pass(some_tokens(segments * rows, 1), positions, of_rows, logits.data());
            const int32_t end = made.batch.rows, count = std::min(wanted, end);
            made.batch.logit_rows += end - count, made.batch.logit_row_count = count;
            made.batch.states = states;
            for (int32_t i = 0; states && i < segments; i++) {
                Segment& s = made.segments[size_t(i)];
                s.state = i, s.settled = s.start - pending, s.settle = std::max(s.settled, CONTEXT - PENDING_ROWS);
            }
            ipex_assist::Pass(*program, x.pool, activations, made.batch);
        };
        place(1, ROWS, PENDING_ROWS), place(ROWS / PENDING_ROWS, PENDING_ROWS, PENDING_ROWS);
        place(ROWS, 1, 0), place(DECODE_ROWS, 1, PENDING_ROWS);
        const TeamNodes team = x.pool.team_nodes(x.pool.threads());
        const int64_t taken = activations.most().total(team.threads(), team.nodes());
        const int64_t planned = workspace_bytes(*program, {ROWS, wanted, CONTEXT}, team);
        CHECK(planned == taken, "%s, %d rows with logits: %ld bytes planned, %ld taken", name, wanted, long(planned),
              long(taken));
        const int64_t longer = workspace_bytes(*program, {ROWS, wanted, 1 << 20}, team);
        CHECK(longer >= planned, "%s: %ld bytes after long texts", name, long(longer));
    }
}

}  // namespace
}  // namespace check
