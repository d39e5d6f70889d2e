"""One request's share of a pass: pending tokens to read, and drafted tokens to verify."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_assist.engine.request import Request
from ipex_assist.executors.interface import Rows
from ipex_assist.speculative.pass_drafts import RequestDraft
from ipex_assist.speculative.sources.head_assistant import HeadAssistant
from ipex_assist.speculative.sources.proposal import NO_PROPOSAL, Proposal


@dataclass(slots=True)
class ScheduledRequest:
    """`pending` of a request's pending tokens, then its drafted ones. What is said of it is so before the pass.

    reads_all_pending: the pass reads all pending tokens, so that the request gets new ones. is_prefill: it reads a
    prompt, or reads a preempted request again; nothing is drafted then. forced_count: drafted tokens that the grammar
    forces, and that are verified whatever they cost. planned: its draft, where the planner
    chooses. keeps_hidden: the pass gives its draft head the hidden states of its rows. rests: its planner plans nothing
    in this pass.
    """

    request: Request
    pending: int
    remaining: int
    reads_all_pending: bool = True
    is_prefill: bool = False
    forced_count: int = 0
    proposal: Proposal = NO_PROPOSAL
    planned: RequestDraft | None = None
    keeps_hidden: bool = True
    rests: bool = False

    @property
    def head(self) -> HeadAssistant | None:
        """The request's draft head, where it is to have the hidden states of this pass."""
        return self.request.head if self.keeps_hidden else None

    @property
    def is_plain_step(self) -> bool:
        """Whether its only row is followed by a token of which nothing else is wanted."""
        request = self.request
        undrafted = request.draft is None or (self.rests and self.head is None)
        return undrafted and not self.is_prefill and request.logprobs is None and request.grammar is None

    @classmethod
    def prefill(cls, request: Request, pending: int) -> ScheduledRequest:
        """Have the pass read `pending` tokens of a prompt, or of a request that reads its own again."""
        scheduled = cls(request, pending, request.remaining, pending == request.pending, True)
        if (head := request.head) is not None:
            scheduled.keeps_hidden = head.keeps_chunk(request.pending - pending)
        return scheduled

    def rows(self) -> Rows:
        """Return the tokens to read, and how many of the last rows need logits."""
        request, drafted = self.request, self.proposal.tokens
        assert request.sequence is not None
        if not self.is_prefill:
            return Rows(request.sequence, [request.tokens[-1], *drafted], len(drafted) + 1)
        tokens = request.unread(self.pending)
        return Rows(
            request.sequence, tokens, len(tokens) if request.needs_prompt_logits else int(self.reads_all_pending)
        )

    def set_proposal(self, proposal: Proposal) -> None:
        """Set the drafted tokens that this pass verifies."""
        self.proposal = self.request.proposal = proposal

    def drop_proposal(self) -> None:
        """Discard the draft: the pass verifies nothing."""
        self.request.roll_back()
        self.proposal = NO_PROPOSAL
