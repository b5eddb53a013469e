"""A LoRA adapter of random weights for the tiny model, made here."""

import json
import random
import struct
from pathlib import Path

#: Input and output size of the adapted matrix in the tiny model (`engine.config`).
_INNER, _OUTER = 64, 64
_RANK = 8


def make_adapter(folder: Path, base: Path, seed: int = 1) -> Path:
    """Write an adapter's folder in PEFT's format, and return it."""
    folder.mkdir(parents=True)
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
    (folder / "adapter_config.json").write_text(json.dumps(told))
    noise = random.Random(seed)
    tensors: dict[str, tuple[int, int]] = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = (_RANK, _INNER)
        tensors[f"{name}.lora_B.weight"] = (_OUTER, _RANK)
    (folder / "adapter_model.safetensors").write_bytes(_safetensors(tensors, noise))
    return folder


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
