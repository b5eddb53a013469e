"""A tiny vision model with random weights, like Qwen's.

Its vocabulary and template are those of the tests of prompts with images.
"""

import json
from pathlib import Path

from tests.rendering.families import Family, folder, train
from tests.rendering.test_media import SEEING, TOKENS
from tests.vllm.engine import LONGEST, config


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
