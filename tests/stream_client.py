"""A client in a process of its own, for tests that kill or freeze it.

    python stream_client.py ADDRESS STREAMS MAX_TOKENS

opens STREAMS streams, prints "streaming" when each has had its first message, and reads on.
"""

from __future__ import annotations

import asyncio
import sys

import grpc

from service.api.gen.plimsoll.v1 import inference_pb2, inference_pb2_grpc


async def main(address: str, streams: int, max_tokens: int) -> None:
    started = 0

    async def read(stub: inference_pb2_grpc.InferenceServiceStub, number: int) -> None:
        nonlocal started
        request = inference_pb2.GenerateStreamRequest(text=f"Story {number}: once upon a time")
        request.options.stopping.max_tokens = max_tokens
        first = True
        async for _ in stub.GenerateStream(request):
            if first:
                first = False
                started += 1
                if started == streams:
                    print("streaming", flush=True)

    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        await asyncio.gather(*(read(stub, number) for number in range(streams)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
