"""Reads a body from the network that may be larger than anyone wants to hold.

    data = await read_at_most(response.content, 64 * 2**20)        # None where there is more

Not covered: what a caller makes of too much, and time limits.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


async def read_at_most(
    content: "aiohttp.StreamReader", most: int, announced: int | None = None
) -> bytes | None:
    """All of a body; None where it is larger than `most` bytes, of which then no more are read.

    Args:
        content: the body.
        most: bytes that are not too many.
        announced: its Content-Length, where there is one: too large a body is then not read at all.
    """
    if (announced or 0) > most:
        return None
    data = bytearray()
    async for chunk in content.iter_any():
        data += chunk
        if len(data) > most:
            return None
    return bytes(data)
