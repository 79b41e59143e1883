"""How long a client lives: as long as a block of code, or as long as a web application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loanasync._lifecycle import Closing


class Lifetime(Closing):
    """Who is closed once can be closed by a block, or by an application of any framework."""

    __slots__ = ()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Close the client when a web application ends, once the calls under way are through.

        It goes to the application as it is: ``FastAPI(lifespan=client.lifespan)``, and so to Starlette;
        ``Litestar(..., lifespan=[client.lifespan])``.

        Args:
            app: The application, which hands itself over; nothing is asked of it.

        Example:
            >>> async def application() -> None:
            ...     async with client.lifespan():
            ...         print("serving")
            >>> run(application())
            serving
        """
        del app
        async with self:
            yield

    cleanup_ctx = lifespan  # aiohttp's name: app.cleanup_ctx.append(client.cleanup_ctx)
