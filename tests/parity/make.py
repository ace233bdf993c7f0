"""What transformers says of the tiny models, kept in expected.npz: `python -m tests.parity.make` makes it anew."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers  # type: ignore[import-not-found, unused-ignore]
from numpy.typing import NDArray
from tests.parity.models import CONFIGS, EXPECTED, HYBRIDS, KEPT, token_ids, write_model


def logits_of(folder: Path) -> NDArray[np.float32]:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[what], (folder, what, report[what])
    with torch.no_grad():
        found: NDArray[np.float32] = model.eval()(torch.tensor([token_ids()])).logits[0].numpy()
    return found


def main() -> None:
    kept: dict[str, NDArray[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate([*CONFIGS, *HYBRIDS]):
            logits = logits_of(write_model(name, Path(folder) / str(i)))
            kept[f"{name}, logits"] = logits[list(KEPT)]
            kept[f"{name}, top"] = logits.argmax(1).astype(np.uint8)
    np.savez_compressed(EXPECTED, **kept)


if __name__ == "__main__":
    main()
