"""Print the size of the code by package: files, lines, tokens; and name what is over the budget.

Budget: 400 lines a file, 60 lines a function. Tokens are printed beside lines so that nobody saves lines by golfing.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE, MAX_FUNCTION = 400, 60
_CXX_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\"(?:\\.|[^\"\\])*\"|[^\s\w]")
_CXX_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def tokens(path: Path, text: str) -> int:
    if path.suffix == ".py":
        skip = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
        return sum(t.type not in skip for t in tokenize.generate_tokens(io.StringIO(text).readline))
    return len(_CXX_TOKEN.findall(_CXX_COMMENT.sub("", text)))


def long_functions(path: Path, text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {length} lines"


def main() -> int:
    sizes: dict[str, list[int]] = {}
    over = []
    for folder in ("src/legato", "csrc", "tests", "tools", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".py", ".cpp", ".h"} or "golden" in path.parts:
                continue
            text = path.read_text()
            parts = path.relative_to(ROOT).parts
            package = "/".join(
                parts[: {"src": 3, "csrc": 2, "tests": 2}.get(parts[0], 1)] if len(parts) > 2 else parts[:1]
            )
            row = sizes.setdefault(package, [0, 0, 0])
            lines = text.count("\n")
            row[0], row[1], row[2] = row[0] + 1, row[1] + lines, row[2] + tokens(path, text)
            if lines > MAX_FILE:
                over.append(f"{path.relative_to(ROOT)} has {lines} lines")
            if path.suffix == ".py" and parts[0] == "src":
                over.extend(long_functions(path, text))
    print(f"{'package':32}{'files':>7}{'lines':>8}{'tokens':>9}")
    for package, (files, lines, count) in sorted(sizes.items()):
        print(f"{package:32}{files:7}{lines:8}{count:9}")
    print(f"{'total':32}" + "".join(f"{sum(r[i] for r in sizes.values()):{w}}" for i, w in enumerate((7, 8, 9))))
    for line in over:
        print("over budget:", line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
