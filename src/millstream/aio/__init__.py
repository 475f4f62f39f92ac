"""Small tools for asyncio: backoff, shared attempts, a loop in a thread."""
