"""Clients as their users write them, against a server of the default model: openai, langchain-openai, instructor, curl.

    python tests/contract/check_clients.py PYTHON [--vllm COMMAND --tokenizer FOLDER] [--guidellm COMMAND]

PYTHON is an interpreter in which legato is installed; this script itself runs where the clients are (`make contract`).
The load generators `vllm bench serve` and `guidellm` need torch, so they run only where somebody has them: COMMAND is
what starts them, FOLDER has the tokenizer that they count with. Each check prints one line; the first that fails ends
the script with its error.
"""

import argparse
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import instructor
import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

QUESTION = "What is the capital of France?"


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)
    mood: Literal["happy", "sad"]


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def openai_client(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    model, talk = model_of(url), [{"role": "user", "content": QUESTION}]
    asked: Any = {"model": model, "messages": talk, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert (last.choices, last.usage.completion_tokens) == ([], whole.usage.completion_tokens)
    parsed = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Ada is 36 and happy."}],
        response_format=Person,
        temperature=0,
        max_tokens=200,
    )
    assert isinstance(parsed.choices[0].message.parsed, Person)
    texts = client.completions.create(model=model, prompt=["One, two,", "Red, green,"], max_tokens=4, n=2, seed=1)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    for wrong, param in (({"temperature": 9}, "temperature"), ({"messages": [{"role": "x"}]}, "messages[0].role")):
        assert refused_param(client, {**asked, **wrong}) == param


def refused_param(client: openai.OpenAI, body: Any) -> str | None:
    """The field that a chat is refused for."""
    try:
        client.chat.completions.create(**body)
    except openai.BadRequestError as error:
        return error.param
    return None


def langchain_chat(url: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model_of(url), temperature=0, max_tokens=40, max_retries=0)
    whole = chat.invoke(QUESTION)
    assert "Paris" in whole.content
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["input_tokens"] > 10
    chunks = list(chat.stream(QUESTION, stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == whole.content
    [usage] = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["total_tokens"] == whole.usage_metadata["total_tokens"]
    assert [len(answer.content) > 0 for answer in chat.batch([QUESTION, "Say hello."])] == [True, True]
    assert "." not in chat.invoke(QUESTION, stop=["."]).content
    scored = chat.bind(logprobs=True, top_logprobs=2).invoke("Say hello.")
    assert len(scored.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2


def langchain_structured(url: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model_of(url), temperature=0, max_tokens=200, max_retries=0)
    for method in ("json_schema", "function_calling"):
        person = chat.with_structured_output(Person, method=method).invoke("Ada is 36 and happy.")
        assert isinstance(person, Person), method


def langchain_tools(url: str) -> None:
    chat = ChatOpenAI(base_url=url, api_key="none", model=model_of(url), temperature=0, max_tokens=100, max_retries=0)
    asked = chat.bind_tools([weather], tool_choice="weather").invoke("How is the weather in Rome?")
    [call] = asked.tool_calls
    assert call["name"] == "weather"
    assert set(call["args"]) == {"city"}
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    talk = [HumanMessage("How is the weather in Rome?"), asked, result]
    assert isinstance(chat.bind_tools([weather], tool_choice="none").invoke(talk), AIMessage)
    one = chat.bind_tools([weather], tool_choice="required", parallel_tool_calls=False)
    pieces = list(one.stream("How is the weather in Rome?"))
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    assert [call["name"] for call in total.tool_calls] == ["weather"]
    assert total.response_metadata["finish_reason"] == "tool_calls"


def langchain_completions(url: str) -> None:
    llm = OpenAI(base_url=url, api_key="none", model=model_of(url), temperature=0, max_tokens=8, max_retries=0)
    assert "".join(llm.stream("The capital of France is")) == llm.invoke("The capital of France is")


def instructor_models(url: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    talk: Any = [{"role": "user", "content": "Ada is 36 and happy."}]
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(client, mode=mode)
        person = patched.chat.completions.create(
            model=model_of(url), messages=talk, response_model=Person, max_tokens=200, temperature=0, max_retries=0
        )
        assert isinstance(person, Person), mode


def curl(url: str) -> None:
    def ask(path: str, body: Any, *flags: str) -> str:
        data = body if isinstance(body, str) else json.dumps(body)
        command = ["curl", "-sS", "--fail-with-body", *flags, f"{url}{path}", "-H", "content-type: application/json"]
        return subprocess.run([*command, "-d", data], capture_output=True, text=True, timeout=120, check=False).stdout

    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 20}
    text = json.loads(ask("/chat/completions", body))["choices"][0]["message"]["content"]
    assert "Paris" in text
    lines = [line for line in ask("/chat/completions", {**body, "stream": True}, "-N").splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == text
    assert json.loads(ask("/completions", "{not json"))["error"]["code"] == "invalid_json"


def vllm_bench(url: str, command: str, tokenizer: str) -> None:
    root, asked = url.removesuffix("/v1"), 4
    for backend, path in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        with tempfile.TemporaryDirectory() as folder:
            data, result = Path(folder) / "prompts.jsonl", Path(folder) / "result.json"
            data.write_text("".join(json.dumps({"prompt": f"{QUESTION} {i}"}) + "\n" for i in range(asked)))
            run(
                *shlex.split(command),
                *("bench", "serve", "--backend", backend, "--base-url", root, "--endpoint", path),
                *("--model", model_of(url), "--tokenizer", tokenizer, "--skip-chat-template", "--ignore-eos"),
                *("--dataset-name", "custom", "--dataset-path", str(data), "--custom-output-len", "8"),
                *("--num-prompts", str(asked), "--request-rate", "4", "--disable-tqdm"),
                *("--save-result", "--result-filename", str(result)),
            )
            found = json.loads(result.read_text())
            assert (found["completed"], found["failed"], found["total_output_tokens"]) == (asked, 0, 8 * asked), found


def guidellm(url: str, command: str, tokenizer: str) -> None:
    root, asked = url.removesuffix("/v1"), 4
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        run(
            *shlex.split(command),
            *("run", "--backend", f"kind=openai_http,target={root}", "--profile", "kind=concurrent,streams=2"),
            *("--constraint", f"kind=max_requests,count={asked}"),
            *("--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"),
            *("--tokenizer", f"kind=huggingface_auto,model={tokenizer}", "--output", f"kind=json,path={result}"),
        )
        [benchmark] = json.loads(result.read_text())["benchmarks"]
        counts = benchmark["metrics"]["request_totals"]
        assert (counts["successful"], counts["errored"]) == (asked, 0), counts


def run(*command: str) -> None:
    """A load generator, which asks nobody but the server. Its output is shown if it fails."""
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=quiet)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def model_of(url: str) -> str:
    return openai.OpenAI(base_url=url, api_key="none").models.list().data[0].id


CHECKS: tuple[Callable[[str], None], ...] = (
    openai_client,
    langchain_chat,
    langchain_structured,
    langchain_tools,
    langchain_completions,
    instructor_models,
    curl,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Clients against a server of the default model")
    parser.add_argument("python")
    for name in ("--vllm", "--guidellm", "--tokenizer"):
        parser.add_argument(name)
    given = parser.parse_args()
    checks = {check.__name__: check for check in CHECKS}
    for check, command in ((vllm_bench, given.vllm), (guidellm, given.guidellm)):
        if command is not None:
            if given.tokenizer is None:
                parser.error("a load generator needs --tokenizer")
            checks[check.__name__] = partial(check, command=command, tokenizer=given.tokenizer)
    command = [given.python, "-m", "legato", "serve", "--port", "0", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            said = next(line for line in server.stdout if line.startswith("serving at"))
            url = f"{said.split()[2]}/v1"
            for name, check in checks.items():
                check(url)
                print(f"{name.replace('_', ' ')}: ok", flush=True)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
