# claim: an event loop opens a socket pair
# expect: error: PermissionError | error: ImportError | timeout
def solve(x):
    import asyncio
    async def main(): return 1
    return asyncio.run(main())
