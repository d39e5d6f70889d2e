// That the buffers of passes are planned to the byte.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "operations/workspace.h"
#include "small_model.h"

namespace check {
namespace {

constexpr int32_t CONTEXT = 250;  // within one block: of longer texts the most is planned that splits may take

// What is planned for passes of up to `most` rows is what the largest of them take, to the byte.
inline void check_workspace(Fixture& x, const char* name, int32_t most) {
    const std::unique_ptr<Program> program = std::make_unique<Program>(*x.model);
    const std::unique_ptr<const States> states =
        x.model->keeps_state() ? std::make_unique<const States>(x.model, most, x.blocks->precision()) : nullptr;
    std::unique_ptr<Blocks> own = std::move(x.blocks);
    x.blocks = std::make_unique<Blocks>(x.model, most, own->precision());
    for (const int32_t wanted : {0, 5, std::min(most, 256)}) {
        Activations activations;
        const auto place = [&](int32_t segments, int32_t rows, int32_t pending) {
            std::vector<Table> tables(size_t(segments), Table(x, 0));
            for (int32_t i = 0; i < segments; i++) tables[size_t(i)].ids = {i};
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
            made.batch.states = states.get();
            for (int32_t i = 0; states && i < segments; i++) {
                Segment& s = made.segments[size_t(i)];
                s.state = i, s.settled = s.start - pending, s.settle = std::max(s.settled, CONTEXT - PENDING_ROWS);
            }
            ipex_assist::Pass(*program, x.pool, activations, made.batch);
        };
        place(1, std::min(most, CONTEXT), states ? std::max(0, std::min(PENDING_ROWS, CONTEXT - most)) : 0);
        place(most / PENDING_ROWS, PENDING_ROWS, PENDING_ROWS);
        place(most, 1, 0), place(DECODE_ROWS, 1, PENDING_ROWS);
        const TeamNodes team = x.pool.team_nodes(x.pool.threads());
        const int64_t taken = activations.most().total(team.threads(), team.nodes());
        const int64_t planned = workspace_bytes(*program, {most, wanted, CONTEXT}, team);
        CHECK(planned == taken, "%s, %d of %d rows with logits: %ld bytes planned, %ld taken", name, wanted, most,
              long(planned), long(taken));
        const int64_t longer = workspace_bytes(*program, {most, wanted, 1 << 20}, team);
        CHECK(longer >= planned, "%s: %ld bytes after long texts", name, long(longer));
    }
    x.blocks = std::move(own);
}

// Of few rows, and of as many as passes have on big machines: these in one format of each type of rows.
inline void check_workspace(Fixture& x, const Format& f, const char* name) {
    const bool shown = f.precision != FP32 && f.precision != BF16 && f.precision != INT8;
    for (const int32_t most : {20, 256, 1024, 4096}) {
        if (everything || !shown || most <= 256) check_workspace(x, name, most);
    }
}

}  // namespace
}  // namespace check
