"""OpenVINO GenAI on a standard workload: one JSON line of seconds. Runs in an environment that has openvino-genai.

python run_openvino.py WORK.json IR_DIR WORKLOAD
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as genai


def main() -> None:
    jobs = json.loads(Path(sys.argv[1]).read_text())[sys.argv[3]]
    scheduler = genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = 1024
    scheduler.max_num_seqs = 64
    scheduler.cache_size = 4
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(sys.argv[2], scheduler, "CPU", {})

    def run(batch: list[dict]) -> float:
        configs = []
        for job in batch:
            config = genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos, config.do_sample = job["max_tokens"], True, False
            configs.append(config)
        inputs = [ov.Tensor(np.array([job["prompt"]], dtype=np.int64)) for job in batch]
        start = time.perf_counter()
        outputs = pipeline.generate(inputs, configs)
        elapsed = time.perf_counter() - start
        for job, output in zip(batch, outputs, strict=True):
            if len(output.m_generation_ids[0]) != job["max_tokens"]:
                raise RuntimeError("an answer is shorter than asked for")
        return elapsed

    run([{"prompt": list(range(100, 132)), "max_tokens": 4}])
    print(json.dumps({"seconds": run(jobs)}))


if __name__ == "__main__":
    main()
