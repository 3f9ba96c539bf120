"""llama.cpp's server with 64 slots, one plain POST per request, all at once.

python run_llama.py WORK.json MODEL.gguf LLAMA_SERVER PORT [FLAG ...]      flags of llama-server
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.error import URLError
from urllib.request import Request, urlopen

from turns import Job, take_turns


def post(url: str, job: Job) -> int:
    """Tokens generated."""
    body = {"prompt": job["prompt"], "n_predict": job["max_tokens"], "ignore_eos": True, "temperature": 0}
    data = json.dumps({**body, "cache_prompt": False}).encode()
    with urlopen(Request(f"{url}/completion", data, {"content-type": "application/json"})) as answer:
        made: int = json.load(answer)["tokens_predicted"]
    return made


def wait(url: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            with urlopen(f"{url}/health"):
                return
        except (URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"llama-server ended with status {server.returncode}")


def main() -> None:
    work, model, program, port, *flags = sys.argv[1:]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([program, "-m", model, "--port", port, *flags], stdout=sys.stderr)
    try:
        wait(url, server)
        with ThreadPoolExecutor(64) as pool:

            def run(jobs: list[Job]) -> float:
                start = time.perf_counter()
                made = list(pool.map(lambda job: post(url, job), jobs))
                elapsed = time.perf_counter() - start
                if made != [job["max_tokens"] for job in jobs]:
                    raise RuntimeError("an answer is shorter than asked for")
                return elapsed

            take_turns(work, run)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
