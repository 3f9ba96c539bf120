"""The default model's GGUF file as a folder of transformers with fp32 weights, for the exporters of the peers.

python dequantize.py CHECKPOINT.gguf FOLDER
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    checkpoint, folder = Path(sys.argv[1]), sys.argv[2]
    source = {"gguf_file": checkpoint.name}
    model = AutoModelForCausalLM.from_pretrained(checkpoint.parent, dtype=torch.float32, **source)
    # The weights are plain numbers now; what says otherwise would be saved with them.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(checkpoint.parent, **source).save_pretrained(folder)


if __name__ == "__main__":
    main()
