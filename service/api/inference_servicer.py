"""InferenceService: text and conversations in, tokens and text out."""

from __future__ import annotations

from service.api.answers import sampling_message
from service.api.checks import Checks
from service.api.dispatch import Call
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.generation import Generation, served_model
from service.api.prompts import PromptReader
from service.api.validation import MAX_SALT_BYTES
from service.config import ServeSettings
from service.front.events import NotReady
from service.front.front import Front

MAX_TOKENIZE_BYTES = 1024**2
MAX_DETOKENIZE_TOKENS = 131072
MAX_ABORT_IDS = 1024
MAX_ABORT_REASON_BYTES = 256


class InferenceServicer:
    """Methods are named after the RPCs; `service.api.dispatch` registers them."""

    def __init__(self, front: Front, settings: ServeSettings, served_by: str) -> None:
        self._front = front
        self._settings = settings
        self._generation = Generation(front, settings, served_by)
        self._prompts = PromptReader(front, settings.max_chat_messages)

    async def Generate(self, request: pb.GenerateRequest, call: Call) -> pb.GenerateResponse:
        return await self._generation.unary(request, call, pb.GenerateResponse)

    async def GenerateStream(self, request: pb.GenerateStreamRequest, call: Call) -> None:
        await self._generation.stream(request, call, pb.GenerateStreamResponse)

    async def Chat(self, request: pb.ChatRequest, call: Call) -> pb.ChatResponse:
        return await self._generation.unary(request, call, pb.ChatResponse)

    async def ChatStream(self, request: pb.ChatStreamRequest, call: Call) -> None:
        await self._generation.stream(request, call, pb.ChatStreamResponse)

    async def Tokenize(self, request: pb.TokenizeRequest, call: Call) -> pb.TokenizeResponse:
        model = served_model(self._front, request.model)
        checks = Checks()
        checks.at_most_bytes("text", request.text, MAX_TOKENIZE_BYTES)
        checks.at_most_bytes("salt", request.salt, MAX_SALT_BYTES)
        kind = request.WhichOneof("input")
        if kind is None:
            checks.refuse("input", None, "must be text or conversation")
        checks.finish()
        if kind == "text":
            token_ids = await self._prompts.text(
                request.text, add_special_tokens=not request.skip_special_tokens
            )
        else:
            token_ids = await self._prompts.conversation(request.conversation)
        try:
            cached_tokens = await self._front.lookup(
                token_ids, tenant=call.tenant, salt=request.salt
            )
        except NotReady:
            cached_tokens = 0  # the cache of an engine that restarts is empty
        return pb.TokenizeResponse(
            token_ids=token_ids,
            max_context_tokens=model.max_context_tokens,
            cached_prefix_tokens=cached_tokens,
        )

    async def Detokenize(self, request: pb.DetokenizeRequest, _: Call) -> pb.DetokenizeResponse:
        model = served_model(self._front, request.model)
        checks = Checks()
        if checks.count("token_ids", request.token_ids, 0, MAX_DETOKENIZE_TOKENS):
            checks.token_ids("token_ids", request.token_ids, model.vocab_size)
        checks.finish()
        token_ids = list(request.token_ids)
        tokenizer = self._front.tokenizer
        keep = request.keep_special_tokens
        return pb.DetokenizeResponse(
            text=await self._front.decode(token_ids, skip_special=not keep),
            raw=b"".join(
                tokenizer.token_bytes(token_id)
                for token_id in token_ids
                if keep or not tokenizer.is_special(token_id)
            ),
        )

    async def AbortRequests(
        self, request: pb.AbortRequestsRequest, call: Call
    ) -> pb.AbortRequestsResponse:
        checks = Checks()
        checks.count("request_ids", request.request_ids, 1, MAX_ABORT_IDS)
        checks.at_most_bytes("reason", request.reason, MAX_ABORT_REASON_BYTES)
        checks.finish()
        aborted, unknown = self._front.abort(
            list(request.request_ids), tenant=call.tenant, reason=request.reason
        )
        return pb.AbortRequestsResponse(aborted_ids=aborted, unknown_ids=unknown)

    async def GetModel(self, request: pb.GetModelRequest, _: Call) -> pb.GetModelResponse:
        model = served_model(self._front, request.model)
        return pb.GetModelResponse(
            model=model.name,
            version=model.version,
            max_context_tokens=model.max_context_tokens,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_ids,
            default_sampling=sampling_message(model.default_sampling),
            block_size_tokens=model.block_tokens,
            kv_cache_dtype=model.kv_dtype,
            max_request_bytes=self._settings.max_request_bytes,
            supports_chat=model.has_chat_template,
            device=model.device,
            weights_dtype=model.weights_dtype,
            attention_backend=model.attention_backend,
        )
