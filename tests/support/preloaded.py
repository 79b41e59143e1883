"""The imports of the fork server."""

import sys
from importlib import import_module

# taskiq imports FastAPI if it is installed, which takes longer than all other imports.
sys.modules["fastapi"] = None  # type: ignore[assignment]  # means that it cannot be imported

for _name in ("asyncpg", "redis.asyncio", "loanasync.testing", "support.fleet.worker_process"):
    import_module(_name)
