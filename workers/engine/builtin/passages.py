"""Longer samples of what agents read: instructions, programs, command output.

Owns prose and code written for this purpose. Must not know tokenizers.
"""

from typing import Final

PROSE: Final = (
    """You are a helpful assistant that works on the user's computer. You have tools for reading and
writing files, for running commands in a terminal, for searching the web and for talking to other
agents. Use them whenever they help; do not describe what you would do, do it.

# Finishing the job
When the user asks you to do something, keep going until it is done. Do not stop after the first
step, and do not ask whether you should continue. If a command fails, read its output, find out why
and try something else. If you cannot solve the problem, say what you tried and what you would need.
""",
    """## Memory
You have a persistent memory across sessions. Save facts that will still matter later: preferences
of the user, details of the environment, the quirks of a tool, conventions of a project. Do not save
the progress of a task, the outcome of a session or temporary state; they can be found again by
searching the history. Write memories as facts, not as instructions to yourself.

## Skills
Before you answer, look through the list of skills below. If one of them matches the task, or is
even partially relevant, load it and follow its instructions. When a skill is wrong or incomplete,
update it at once. After a difficult task, offer to save the approach as a new skill.
""",
    """- Never guess the content of a file: read it first.
- Prefer the smallest change that solves the problem; don't rewrite what works.
- Check the result: run the tests, look at the output, and compare it with what was expected.
- If you're not sure, say so. It's better to ask than to invent an answer.
- Don't print secrets, tokens or passwords, and don't send them anywhere.
- Don't delete files that you didn't create unless the user has asked for it.
- Keep your answers short. Use Markdown only where it can be displayed.
""",
    """Runs a command in the shell and returns its output and exit code. Use this for builds, tests,
version control, package managers and everything that needs a process. Do not use it for reading
files (use read_file instead), for searching (use search_files) or for editing (use patch). Set
background to true for servers and other long-running processes, then use the process tool to poll,
wait, read the log or kill it. Set timeout in seconds; the default is 180. The working directory
persists between calls.
""",
    """Reads a text file with line numbers. Use offset and limit for large files: at most 2000
lines are returned, and lines longer than 2000 characters are cut off. Replaces a piece of text in
a file: it must be unique unless replace_all is true. Returns a diff of the change. Writes content
to a file and replaces what was there before; creates parent directories automatically. Searches
file contents by a regular expression, or finds files by name with a glob pattern; results are
sorted by the time of their modification, newest first.
""",
    """Conversation started: Monday, January 1, 2026. Host: Linux (6.1). User home directory:
/home/user. Current working directory: /home/user/project. Model: default. Provider: custom. You're
a CLI agent: try not to use Markdown, but simple text that can be displayed inside a terminal. File
paths that you mention become links. Please run `echo hello` and tell me what it printed. Can you
summarise this document for me? Thanks! What's the weather like in Berlin on Tuesday? I don't know,
let's find out.
""",
)

CODE: Final = (
    """import os
import sys
import json
from pathlib import Path


def load_config(path: str) -> dict[str, object]:
    \"\"\"Return the settings in a file, or an empty dictionary if there is none.\"\"\"
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class Worker:
    def __init__(self, name: str, limit: int = 10) -> None:
        self.name = name
        self.limit = limit
        self.items: list[str] = []

    async def run(self) -> None:
        for index, item in enumerate(self.items):
            if index >= self.limit:
                raise ValueError(f"too many items: {len(self.items)}")
            try:
                result = await self.process(item)
            except Exception as error:
                print(f"error: {error}", file=sys.stderr)
                continue
            yield result


if __name__ == "__main__":
    main()
""",
    """const server = http.createServer((request, response) => {
  const body = [];
  request.on("data", (chunk) => body.push(chunk));
  request.on("end", () => {
    if (body.length === 0) {
      return response.end(JSON.stringify({ error: "empty body" }));
    }
    response.writeHead(200, { "Content-Type": "application/json" });
    response.end(Buffer.concat(body).toString());
  });
});
export default function App({ items }) {
  return <ul>{items.map((item) => <li key={item.id}>{item.name}</li>)}</ul>;
}
""",
    """$ git status --short
 M src/main.py
?? tests/test_main.py
$ git add -A && git commit -m "Fix the parser" && git push origin main
$ python3 -m pytest -q tests/
$ ls -la /usr/local/bin | grep -v total | head -n 20
$ curl -s http://localhost:8080/v1/models | jq '.data[0].id'
$ for f in *.txt; do echo "$f"; done
$ sudo apt-get install -y build-essential && docker compose up -d
drwxr-xr-x 2 root root 4096 Jan 01 12:00 .
-rw-r--r-- 1 user user 1234 Jan 01 12:00 README.md
Traceback (most recent call last):
  File "/home/user/project/main.py", line 42, in <module>
ModuleNotFoundError: No module named 'requests'
""",
    """| Name | Value |
| --- | --- |
| **bold** | `code` |

1. First step
2. Second step

```python
print("hello")
```

<available_skills>
  software-development: Plan, write, test and review code.
    - github: Work with issues, branches and pull requests.
</available_skills>
[project]
name = "example"
version = "0.1.0"
dependencies = ["numpy>=2.0"]
SELECT id, name FROM users WHERE created_at > '2026-01-01' ORDER BY name LIMIT 100;
""",
)
