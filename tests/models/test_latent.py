"""What config.json says of latent attention and of experts in groups; what no backend computes is refused."""

import json
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parity.models import CONFIGS

from hotloop.core.errors import ModelError
from hotloop.models.heads import halves_of_latent
from hotloop.models.huggingface import config_spec
from hotloop.models.layout import check_spec


def read(folder: Path, name: str, **changes: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(CONFIGS[name] | changes))
    spec = config_spec(folder)
    check_spec(folder, spec, 1000)
    return spec


def test_yarn_sharpens_all_logits(tmp_path: Path) -> None:
    spec = read(tmp_path, "deepseek_v2")
    assert spec.latent.scale == pytest.approx(24**-0.5 * (0.1 * log(4) + 1) ** 2)
    assert read(tmp_path, "glm4_moe_lite").latent.scale == pytest.approx(24**-0.5)
    assert (spec.head_dim, spec.mixed_size, spec.latent.width) == (24, 4 * 12, 40)


def test_pairs_side_by_side_become_halves(tmp_path: Path) -> None:
    latent = read(tmp_path, "deepseek_v3").latent
    orders = halves_of_latent(latent)
    np.testing.assert_array_equal(orders["q_b"], [*range(16), 16, 18, 20, 22, 17, 19, 21, 23])
    np.testing.assert_array_equal(orders["kv_a"][32:] - 32, [0, 2, 4, 6, 1, 3, 5, 7])
    assert not read(tmp_path, "deepseek_v3, halves").latent.is_interleaved


def test_softmax_scores_have_groups_only_where_they_are_asked_for(tmp_path: Path) -> None:
    assert read(tmp_path, "deepseek_v2", n_group=4, topk_group=2).experts.num_groups == 1
    assert read(tmp_path, "deepseek_v2, groups").experts.num_chosen_groups == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"attention_bias": True}, "latent attention with biases"),
        ({"num_key_value_heads": 2}, "fewer heads of keys and values"),
        ({"qk_rope_head_dim": 7}, "has no halves"),
        ({"kv_lora_rank": 0}, "kv_lora_rank should be a number above zero"),
        ({"scoring_func": "softmax"}, "scores other than sigmoid"),
        ({"mlp_layer_types": ["sparse", "dense"]}, "experts in only some of the layers"),
        ({"n_group": 3}, "8 experts cannot be chosen by 3 groups"),
        ({"n_group": 4, "topk_group": 1}, "8 experts cannot be chosen by 4 groups"),
        ({"n_group": 8}, "8 experts cannot be chosen by 8 groups"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        read(tmp_path, "deepseek_v3", **changes)
