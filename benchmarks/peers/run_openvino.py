"""OpenVINO GenAI, continuous batching. Runs in an environment that has openvino-genai.

python run_openvino.py WORK.json IR_DIR [PROPERTY=VALUE ...]      properties of the CPU plugin
"""

import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai
from turns import Job, take_turns


def pipeline_of(folder: str, properties: dict[str, str]) -> genai.ContinuousBatchingPipeline:
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = 1024
    scheduler.max_num_seqs = 64
    scheduler.cache_size = 4  # GiB
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    return genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)


def config_of(max_tokens: int) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = max_tokens, True, False
    return config


def tensor_of(prompt: list[int]) -> ov.Tensor:
    return ov.Tensor(np.array([prompt], dtype=np.int64))


def main() -> None:
    pipeline = pipeline_of(sys.argv[2], dict(text.split("=", 1) for text in sys.argv[3:]))

    def run(jobs: list[Job]) -> float:
        configs = [config_of(job["max_tokens"]) for job in jobs]
        inputs = [tensor_of(job["prompt"]) for job in jobs]
        start = time.perf_counter()
        outputs = pipeline.generate(inputs, configs)
        elapsed = time.perf_counter() - start
        for job, output in zip(jobs, outputs, strict=True):
            if len(output.m_generation_ids[0]) != job["max_tokens"]:
                raise RuntimeError("an answer is shorter than asked for")
        return elapsed

    take_turns(sys.argv[1], run)


if __name__ == "__main__":
    main()
