"""Whether a step came out right: nothing is timed before this has said so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import MoEEpError
from .inputs import make_inputs, take_rows, visits
from .low_precision import LowPrecisionBound

if TYPE_CHECKING:
    import torch

    from ..config import MoEEpDispatchResult
    from .cases import Case
    from .inputs import Inputs

__all__ = [
    "CheckError",
    "Expectation",
    "base_rows",
    "check_combine",
    "check_dispatch",
    "check_low_precision_combine",
    "expert_rows",
    "make_expert_rows",
]


class CheckError(MoEEpError):
    """A step gave other bits than it must."""


class Expectation:
    """What one rank must receive and get back.

    Parameters
    ----------
    case
        The case.
    rank
        The rank.
    device
        Where the rank's tensors lie. Every rank computes elementwise what others compare with, so
        their devices are of one kind.
    """

    def __init__(self, case: Case, rank: int, device: torch.device | str = "cpu") -> None:
        self.case = case
        self.rank = rank
        self.device = device
        self.received: list[Inputs] = []
        self.tokens: list[torch.Tensor] = []
        for src in range(case.world_size):
            sent = make_inputs(case, src).to(device)
            goes_to = visits(case, sent.topk_ids)
            here = goes_to[:, rank].nonzero().squeeze(1)
            self.tokens.append(here)
            self.received.append(sent.select(here))
            if src == rank:
                self.inputs = sent
                self.rows_to: list[int] = goes_to.sum(dim=0).tolist()
                self.output = _combined(case, rank, goes_to)
                self.goes_to = goes_to

    @property
    def rows_from(self) -> list[int]:
        """[R] rows that come from each rank."""
        return [len(tokens) for tokens in self.tokens]

    def places(self, src: int, transport: str | None) -> torch.Tensor:
        """Rows of block `src` that hold its tokens: token t at row t by Lamport, else compactly."""
        import torch

        tokens = self.tokens[src]
        if transport == "lamport":
            return tokens
        return torch.arange(len(tokens), device=tokens.device)

    def low_precision_bound(self) -> LowPrecisionBound:
        """How far an FP8 combine may be off."""
        bound = LowPrecisionBound(self.case, base_rows(self.case, self.rank, self.device))
        for rank in range(self.case.world_size):
            tokens = self.goes_to[:, rank].nonzero().squeeze(1)
            base = base_rows(self.case, self.rank, self.device)[tokens]
            bound.add(tokens, expert_rows(self.case, base, rank))
        return bound


def base_rows(case: Case, src: int, device: torch.device | str) -> torch.Tensor:
    """Return [T, H] float32 numbers that expert outputs for rank src's tokens are made from."""
    import torch

    first = torch.arange(case.num_tokens, dtype=torch.float32, device=device).unsqueeze(1)
    column = torch.arange(case.hidden_size, dtype=torch.float32, device=device)
    return torch.sin(first * 0.37 + column * 0.011 + src)


def expert_rows(case: Case, base: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the expert outputs of rank `rank` for tokens with these base rows."""
    return (base * (1.0 + 0.3 * rank)).to(case.torch_dtype)


def _combined(case: Case, src: int, goes_to: torch.Tensor) -> torch.Tensor:
    """Float32 sum in ascending rank order, rounded once: to the bit what combine must give."""
    import torch

    base = base_rows(case, src, goes_to.device)
    sums = torch.full_like(base, -0.0)
    for rank in range(case.world_size):
        tokens = goes_to[:, rank].nonzero().squeeze(1)
        sums[tokens] += expert_rows(case, base[tokens], rank).float()
    sums[~goes_to.any(dim=1)] = 0.0
    return sums.to(case.torch_dtype)


def make_expert_rows(expected: Expectation, rows: torch.Tensor, transport: str | None) -> None:
    """Write what this rank's experts return into the rows [R * T, H] that hold tokens."""
    case = expected.case
    blocks = rows.view(case.world_size, case.num_tokens, case.hidden_size)
    for src, tokens in enumerate(expected.tokens):
        base = base_rows(case, src, expected.device)[tokens]
        blocks[src, expected.places(src, transport)] = expert_rows(case, base, expected.rank)


def check_dispatch(
    expected: Expectation, result: MoEEpDispatchResult, transport: str | None
) -> None:
    """Compare all payloads, counts and empty rows of a dispatch, bit by bit.

    Parameters
    ----------
    expected
        What must arrive.
    result
        What did.
    transport
        How; it decides where rows lie.

    Raises
    ------
    CheckError
        Something differs; the message says what.
    """
    case = expected.case
    counts = [] if result.recv_counts is None else result.recv_counts.tolist()
    _require(counts == expected.rows_from, expected, "recv_counts")
    for src, wanted in enumerate(expected.received):
        rows = src * case.num_tokens + expected.places(src, transport)
        pairs = [
            ("hidden_states", result.hidden_states, wanted.hidden_states),
            ("topk_ids", result.topk_ids, wanted.topk_ids),
            ("topk_weights", result.topk_weights, wanted.topk_weights),
            ("hidden_states_scale", result.hidden_states_scale, wanted.scales),
        ]
        for name, got, want in pairs:
            if want is None:
                _require(got is None, expected, name)
            else:
                assert got is not None
                _require(
                    _equal_bits(take_rows(got, rows), want), expected, f"{name} from rank {src}"
                )
    empty = case.world_size * case.num_tokens - sum(expected.rows_from)
    invalid = (result.topk_ids == -1).all(dim=1).sum().item()
    _require(invalid == empty, expected, "ids of rows without a token")


def check_combine(expected: Expectation, output: torch.Tensor) -> None:
    """Compare a combine's result, bit by bit.

    Raises
    ------
    CheckError
        It differs.
    """
    _require(_equal_bits(output, expected.output), expected, "combined rows")


def check_low_precision_combine(expected: Expectation, output: torch.Tensor) -> None:
    """Compare a combine over an FP8 wire with the exact sums, within the bound of the format.

    Raises
    ------
    CheckError
        It is further off.
    """
    _require(expected.low_precision_bound().holds(output), expected, "FP8 combined rows")


def _equal_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    import torch

    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))


def _require(condition: bool, expected: Expectation, what: str) -> None:
    if not condition:
        raise CheckError(
            f"bench: {what} must be what was sent, got other bits on rank {expected.rank} of "
            f"{expected.case}"
        )
