"""What a tower makes of an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class SeenImage:
    """Rows and axes as ImageRows (executors/image_rows.py) has them."""

    rows: NDArray[np.float32]
    axes: NDArray[np.int32] | None
