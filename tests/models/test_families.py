"""The table of families in docs/models.md, held to what is compared with transformers, read and spoken."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tests.chat.reasoning_templates import STYLES
from tests.chat.speaking import FORMATS as SPOKEN
from tests.parity.models import CONFIGS, EXPECTED, HYBRIDS

from hotloop.core.config import ThinkingFormatName, ToolFormatName
from hotloop.models import gguf_model, vocabulary
from hotloop.models.architecture import FAMILIES
from hotloop.models.heads import head_orders
from hotloop.models.huggingface import config_spec
from hotloop.models.spec import ModelSpec

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs/models.md").read_text("utf-8").partition("### Families\n")[2].partition("\n### ")[0]
LINES = [[cell.strip() for cell in line.strip("|").split("|")] for line in SECTION.splitlines() if "| `" in line]
ROWS = [cells for cells in LINES if cells[1] != "`model_type`"]
COMPARED = {"tests/parity/test_cpu.py": CONFIGS, "tests/parity/test_hybrid.py": HYBRIDS}
COMPARED_ON_GPU = {"tests/backends/cuda/test_parity.py": CONFIGS, "tests/backends/cuda/test_hybrid.py": HYBRIDS}


def compared_families(files: dict[str, dict[str, Any]]) -> set[str]:
    """Those of tiny models that tests go through and that logits of transformers are kept of."""
    with np.load(EXPECTED) as kept:
        for name in (name for configs in files.values() for name in configs):
            assert f"{name}, logits" in kept
    for file, configs in files.items():
        assert ("CONFIGS" if configs is CONFIGS else "HYBRIDS") in (ROOT / file).read_text("utf-8")
    return {FAMILIES[config["model_type"]] for configs in files.values() for config in configs.values()}


def make_spec(folder: Path, model_type: str, **changes: Any) -> ModelSpec:
    """Of a tiny model of that family."""
    family = FAMILIES[model_type]
    config = next(each for each in (CONFIGS | HYBRIDS).values() if FAMILIES[each["model_type"]] == family)
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type} | changes))
    return config_spec(folder)


def reads_gguf(model_type: str) -> bool:
    """By what llama.cpp's converter calls the architecture, and the way of cutting words where not all are known."""
    family = FAMILIES[model_type]
    names = {"mixtral": "llama", "gptoss": "gpt-oss", "deepseek3": "deepseek2", "glm4moelite": "deepseek2"}
    cuts = {"glm4_moe": "glm4", "glm4_moe_lite": "glm4", "deepseek_v3": "deepseek-v3"}
    cuts |= {"deepseek_v2": "deepseek-llm", "kimi_k2": "kimi-k2"}
    return names.get(family, family) in gguf_model._FAMILIES and cuts.get(model_type, "qwen2") in vocabulary._WORD_CUTS


def test_every_family_has_a_row() -> None:
    assert sorted(row[1].strip("`") for row in ROWS) == sorted(FAMILIES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_a_row_says_what_tests_show(row: list[str], tmp_path: Path) -> None:
    _, model_type, cpu, gpu, files, tools, thoughts, reuse = row
    spec = make_spec(tmp_path, model_type.strip("`"))
    assert (cpu == "yes") == (spec.family in compared_families(COMPARED))
    assert (gpu == "yes") == (spec.family in compared_families(COMPARED_ON_GPU))
    is_fused = spec.family == "gptoss"
    assert ("MXFP4" in files) == is_fused
    assert ("GGUF" in files) == reads_gguf(model_type.strip("`"))
    assert ("AWQ" in files) == ("GPTQ" in files) == (not head_orders(spec) and not spec.latent and not is_fused)
    if "FP8" in files:
        fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
        assert make_spec(tmp_path, model_type.strip("`"), quantization_config=fp8).fp8
    assert reuse == ("states" if spec.linear else "blocks")
    for name in re.findall(r"`(\w+)`", tools):
        assert name in get_args(ToolFormatName)
        assert name in SPOKEN or name == "harmony"  # which has tests of its own
    for name in re.findall(r"`(\w+)`", thoughts):
        assert name in get_args(ThinkingFormatName)
        assert name in STYLES or name == "harmony"
