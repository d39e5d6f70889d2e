"""What a tower makes of an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ipex_assist.vision.families.family import ALL_ROWS, Layout


@dataclass(frozen=True, eq=False)
class SeenImage:
    """Rows and axes as ImageRows (executors/image_rows.py) has them. layout: how they stand in a prompt."""

    rows: NDArray[np.float32]
    axes: NDArray[np.int32] | None
    layout: Layout = ALL_ROWS

    @property
    def pieces(self) -> Layout:
        """The layout with the number of rows."""
        return tuple((text, len(self.rows) if count < 0 else count) for text, count in self.layout)
