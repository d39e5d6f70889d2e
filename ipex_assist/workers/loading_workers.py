"""What the workers do that are not ready yet, in a few words. Never imports torch."""

from __future__ import annotations

from ipex_assist.env.phases import how_far
from ipex_assist.workers.wire import PhaseReport


class LoadingWorkers:
    """Takes the reports of workers that load; they are alike, so that one of them speaks for all."""

    def __init__(self) -> None:
        self._reports: dict[int, PhaseReport] = {}

    def note(self, report: PhaseReport) -> None:
        """Take what a worker does now."""
        self._reports[report.instance] = report

    def over(self, instance: int) -> None:
        """It is ready, or has ended."""
        self._reports.pop(instance, None)

    @property
    def first(self) -> PhaseReport | None:
        """The report of the lowest number."""
        return self._reports[min(self._reports)] if self._reports else None

    def text(self, loading: int) -> str:
        """How many load, how far, and what they do; empty where none loads. A narrow terminal cuts the end off."""
        if not loading:
            return ""
        first, text = self.first, f"{loading} instance{'s' * (loading != 1)} loading"
        return text if first is None else f"{text}, {how_far(first.share, first.seconds)}: {first.name}"
