"""Models of random weights, made here: an adapter, and one that sees images, like Qwen's.

The vocabulary and template of the latter are those of the tests of prompts with images.
"""

import json
import random
import struct
from pathlib import Path

from tests.rendering.families import Family, folder, train
from tests.rendering.test_media import SEEING, TOKENS
from tests.vllm.engine import LONGEST, config

#: Input and output size of the adapted matrix in the tiny model (`engine.config`).
_INNER, _OUTER = 64, 64
_RANK = 8


def make_adapter(path: Path, base: Path, seed: int = 1) -> Path:
    """Write an adapter's folder in PEFT's format, and return it."""
    path.mkdir(parents=True)
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": _RANK,
        "lora_alpha": 16,
        "target_modules": ["q_proj"],
        "bias": "none",
        "inference_mode": True,
    }
    (path / "adapter_config.json").write_text(json.dumps(told))
    noise = random.Random(seed)
    tensors: dict[str, tuple[int, int]] = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = (_RANK, _INNER)
        tensors[f"{name}.lora_B.weight"] = (_OUTER, _RANK)
    (path / "adapter_model.safetensors").write_bytes(_safetensors(tensors, noise))
    return path


def _safetensors(tensors: dict[str, tuple[int, int]], noise: random.Random) -> bytes:
    """Return the whole format: a length of 8 bytes, a header in JSON, and 32-bit floats."""
    header, data = {}, b""
    for name, (rows, columns) in tensors.items():
        values = [noise.gauss(0, 0.5) for _ in range(rows * columns)]
        begin, data = len(data), data + struct.pack(f"<{len(values)}f", *values)
        offsets = [begin, len(data)]
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": offsets}
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


def make_seeing(path: Path) -> Path:
    """Write the model folder, and return it."""
    family = Family(SEEING, TOKENS, eos="<|im_end|>", pad="<|endoftext|>")
    tokenizer = train(family)
    told = {"model_max_length": LONGEST, "processor_class": "Qwen2VLProcessor"}
    folder(path, family, tokenizer, config=told)
    ids = {
        "vision_start_token_id": "<|vision_start|>",
        "vision_end_token_id": "<|vision_end|>",
        "vision_token_id": "<|image_pad|>",
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
    }
    model = {
        **config(tokenizer.get_vocab_size()),
        **{name: tokenizer.token_to_id(token) for name, token in ids.items()},
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "vision_config": {
            "depth": 1,
            "embed_dim": 64,
            "hidden_size": 64,
            "mlp_ratio": 2,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }
    (path / "config.json").write_text(json.dumps(model))
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "min_pixels": 3136,
        "max_pixels": 1 << 20,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.25, 0.25, 0.25],
    }
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    return path
