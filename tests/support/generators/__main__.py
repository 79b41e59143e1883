"""Generates clients from the sandbox's OpenAPI document, and completes a flow with each: `nox -s generators`.

`python -m support.generators FOLDER` empties the folder, generates the clients in it, compiles them, and
compares the calls in the journal of the sandbox. It exits with status 1 if one fails. Without Node.js, it
skips the clients in TypeScript.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from loanasync.sandbox import Sandbox
from loanasync.sandbox.openapi import document

FLOWS = Path(__file__).parent / "flows"
PACKAGES = ("openapi-typescript@7", "openapi-fetch", "@hey-api/openapi-ts", "typescript@5", "@types/node")
CREATED = [("create_request", 201), ("approve", 201), ("upload_documents", 201), ("complete", 200)]
CALLS = [*CREATED, ("approve", 400)]
PYTHON = {
    "openapi_python_client": "openapi-python-client generate --path openapi.json --meta none --overwrite"
    " --output-path generated_client",
    "datamodel_code_generator": "datamodel-codegen --input openapi.json --output generated_models.py"
    " --output-model-type pydantic_v2.BaseModel --use-annotated",
}
TYPESCRIPT = {
    "openapi_typescript": "openapi-typescript openapi.json -o generated_schema.ts",
    "hey_api": "openapi-ts -i openapi.json -o generated_sdk",
}
# Some generated clients have type errors that do not depend on the document: check the flow only.
CHECK = "mypy --strict --follow-imports=silent --config-file="
# CommonJS, since imports in generated files have no file extension.
COMPILE = "tsc --strict --skipLibCheck --target es2022 --module commonjs --esModuleInterop --outDir out"


def run(folder: Path, command: str, *arguments: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(folder)}
    subprocess.run([*command.split(), *arguments], check=True, cwd=folder, env=env, capture_output=True)


def python_flow(folder: Path, flow: str, url: str) -> None:
    tools = Path(sys.executable).parent
    shutil.copy(FLOWS / f"{flow}.py", folder / "flow.py")
    run(folder, f"{tools}/{PYTHON[flow]}")
    run(folder, f"{tools}/{CHECK} flow.py")
    run(folder, sys.executable, "flow.py", url)


def typescript_flow(folder: Path, flow: str, url: str) -> None:
    tools = folder / "node_modules" / ".bin"
    shutil.copy(FLOWS / f"{flow}.ts", folder / "flow.ts")
    run(folder, f"{tools}/{TYPESCRIPT[flow]}")
    run(folder, f"{tools}/{COMPILE} flow.ts")
    run(folder, "node out/flow.js", url)


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    flows = dict.fromkeys(PYTHON, python_flow)
    if shutil.which("node") and shutil.which("npm"):
        run(folder, "npm install --silent --prefix .", *PACKAGES)
        flows |= dict.fromkeys(TYPESCRIPT, typescript_flow)
    else:
        print(f"skipped, as Node.js is not installed: {', '.join(TYPESCRIPT)}")
    failed = False
    for flow, play in flows.items():
        with Sandbox.in_thread() as sandbox:
            described = document(sandbox.base_url, sandbox.shop_id)
            (folder / "openapi.json").write_text(json.dumps(described), encoding="utf-8")
            try:
                play(folder, flow, sandbox.base_url)
            except subprocess.CalledProcessError as error:
                print((error.stdout + error.stderr).decode())
            calls = [(call.operation, call.status) for call in sandbox.journal]
        print(f"{flow}: {'complete' if calls == CALLS else f'failed, with the calls {calls}'}")
        failed |= calls != CALLS
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
