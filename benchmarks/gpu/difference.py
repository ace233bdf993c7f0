"""How far some logits are from what they should be."""

from dataclasses import asdict, dataclass

import torch


@dataclass(frozen=True, slots=True)
class Difference:
    """How far some logits are from what they should be. Sums of these are over all positions of both."""

    num_positions: int = 0
    num_equal: int = 0
    max_abs: float = 0.0
    sum_abs: float = 0.0
    sum_square: float = 0.0
    sum_square_wanted: float = 0.0
    num_logits: int = 0
    max_lost: float = 0.0
    """Where the top token is another: by how much at most the right one is ahead of it."""

    @classmethod
    def between(cls, got: torch.Tensor, want: torch.Tensor) -> "Difference":
        error = (got - want).abs()
        lost = want.max(1).values - want.gather(1, got.argmax(1, keepdim=True))[:, 0]
        return cls(
            num_positions=len(want),
            num_equal=int((got.argmax(1) == want.argmax(1)).sum()),
            max_abs=float(error.max()),
            sum_abs=float(error.double().sum()),
            sum_square=float(error.double().square().sum()),
            sum_square_wanted=float(want.double().square().sum()),
            num_logits=want.numel(),
            max_lost=float(lost.max()),
        )

    def __add__(self, other: "Difference") -> "Difference":
        mine, others = asdict(self), asdict(other)
        return Difference(**{k: max(mine[k], others[k]) if "max" in k else mine[k] + others[k] for k in mine})

    @property
    def share_equal(self) -> float:
        return self.num_equal / self.num_positions

    @property
    def relative(self) -> float:
        return float((self.sum_square / self.sum_square_wanted) ** 0.5)

    def to_json(self) -> dict[str, float]:
        return {
            "positions": self.num_positions,
            "top_equal": round(self.share_equal, 5),
            "max_abs": float(f"{self.max_abs:.3g}"),
            "mean_abs": float(f"{self.sum_abs / self.num_logits:.3g}"),
            "relative": float(f"{self.relative:.3g}"),
            "max_lost": float(f"{self.max_lost:.3g}"),
        }
