"""One request's share of a pass: pending tokens to read, and drafted tokens to verify."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipex_assist.engine.request import Request
from ipex_assist.executors.interface import Rows
from ipex_assist.speculative.draft_source import Proposal
from ipex_assist.speculative.joint_schedule import JointDraft


@dataclass
class ScheduledRequest:
    """`pending` of a request's pending tokens, then its drafted ones. joint_draft: set by a joint schedule."""

    request: Request
    pending: int
    remaining: int  # before the pass
    forced_count: int = 0  # drafted tokens that the grammar forces: verified whatever they cost
    proposal: Proposal = field(default_factory=lambda: Proposal([]))
    joint_draft: JointDraft | None = None

    @property
    def reads_all_pending(self) -> bool:
        """Whether the pass reads all pending tokens, so that the request gets new ones."""
        return self.pending == self.request.pending

    @property
    def is_prefill(self) -> bool:
        """Whether it reads a prompt, or reads a preempted request again."""
        return self.pending > 1 or not self.request.has_output

    def rows(self) -> Rows:
        """Return the tokens to read, and how many of the last rows need logits."""
        assert self.request.sequence is not None
        tokens = [*self.request.unread(self.pending), *self.proposal.tokens]
        if self.request.needs_prompt_logits:
            return Rows(self.request.sequence, tokens, len(tokens))
        return Rows(self.request.sequence, tokens, len(self.proposal.tokens) + 1 if self.reads_all_pending else 0)

    def set_proposal(self, proposal: Proposal) -> None:
        """Set the drafted tokens that this pass verifies."""
        self.proposal = self.request.proposal = proposal

    def drop_proposal(self) -> None:
        """Discard the draft: the pass verifies nothing."""
        self.request.roll_back()
        self.proposal = Proposal([])
