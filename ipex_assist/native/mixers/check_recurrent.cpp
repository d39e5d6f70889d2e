#include <cmath>

#include "mixers/mixer.h"

namespace ipex_assist {

void check_recurrent(const RecurrentSpec& r) {
    check_range("heads of a recurrent mixer", r.heads, 1, LARGEST);
    check_range("key heads of a recurrent mixer", r.key_heads, 1, r.heads);
    check_range("key_dim of a recurrent mixer", r.key_dim, 1, LARGEST);
    check_range("value_dim of a recurrent mixer", r.value_dim, 1, LARGEST);
    check_range("key_heads x key_dim", r.key_width(), 1, LARGEST);
    check_range("heads x value_dim", r.value_width(), 1, LARGEST);
    check_range("rows of a convolution", r.conv_kernel, 1, MOST_CONV_ROWS);
    check_range("groups of a gated norm", r.norm_groups, 0, r.heads);
    if (r.heads % r.key_heads || (r.norm_groups && r.value_width() % r.norm_groups)) {
        refuse("%d heads of a recurrent mixer in %d groups, and %d of its norm", r.heads, r.key_heads, r.norm_groups);
    }
    check_range("whether an output gate is a sigmoid", r.sigmoid_gate, 0, r.kind == GATED_DELTA);
    if (!std::isfinite(r.norm_eps) || r.norm_eps < 0) refuse("the epsilon of a gated norm is %g", double(r.norm_eps));
    if (!(r.step_limit[0] >= 0) || !(r.step_limit[1] >= r.step_limit[0])) {
        refuse("steps from %g to %g", double(r.step_limit[0]), double(r.step_limit[1]));
    }
}

}  // namespace ipex_assist
