"""What a pass holds of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from ipex_assist.engine.request import Request
from ipex_assist.executors.interface import Rows
from ipex_assist.speculative.draft_source import Proposal
from ipex_assist.speculative.joint_schedule import JointDraft


@dataclass
class ScheduledRequest:
    """So many of a request's pending tokens, then drafted ones. turn: where one schedule decides for all."""

    request: Request
    pending: int
    remaining: int  # before the pass
    forced_count: int = 0  # tokens of its draft that must follow: they are verified whatever they cost
    proposal: Proposal = field(default_factory=lambda: Proposal([]))
    joint_draft: JointDraft | None = None

    @property
    def reads_all_pending(self) -> bool:
        """Whether all pending tokens are in it, so that the text goes on."""
        return self.pending == self.request.pending

    @property
    def is_prefill(self) -> bool:
        """Whether it is of a prompt, or of a text that is read again."""
        return self.pending > 1 or not self.request.has_output

    def rows(self) -> Rows:
        """Return the tokens, and of how many logits are wanted."""
        assert self.request.sequence is not None
        tokens = [*self.request.unread(self.pending), *self.proposal.tokens]
        if self.request.needs_prompt_logits:
            return Rows(self.request.sequence, tokens, len(tokens))
        return Rows(self.request.sequence, tokens, len(self.proposal.tokens) + 1 if self.reads_all_pending else 0)

    def set_proposal(self, proposal: Proposal) -> None:
        """Take what was drafted for it; it waits for its verification."""
        self.proposal = self.request.proposal = proposal

    def drop_proposal(self) -> None:
        """Verify nothing of what was drafted."""
        self.request.roll_back()
        self.proposal = Proposal([])
