"""Tenants, of which only so many have series of their own."""

from __future__ import annotations

from service.telemetry.catalog.metric import Kind, Label, Metric

OTHER_TENANTS = "other"
NO_TENANT = "default"

TENANT = Label("tenant", None)  # so many by name, OTHER_TENANTS, and NO_TENANT for those that
# name none

# Few: each of them is a series of each tenant. All are bounds of the histogram over all tenants.
FIRST_TOKEN_BUCKETS = (0.001, 0.04, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 40.0, 86400.0)

_WHOSE = "A tenant beyond the first metrics_tenants is counted as other."

ADMITTED = Metric(
    name="plimsoll_tenant_requests_admitted_total",
    kind=Kind.COUNTER,
    help=f"Requests of a tenant that became live. {_WHOSE}",
    labels=(TENANT,),
)
FINISHED = Metric(
    name="plimsoll_tenant_requests_finished_total",
    kind=Kind.COUNTER,
    help=f"Requests of a tenant that were live and are not any more. {_WHOSE}",
    labels=(TENANT,),
)
REFUSED = Metric(
    name="plimsoll_tenant_requests_refused_total",
    kind=Kind.COUNTER,
    help=f"Valid requests of a tenant that were not admitted. {_WHOSE}",
    labels=(TENANT,),
)
PROMPT_TOKENS = Metric(
    name="plimsoll_tenant_prompt_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help=f"Tokens in the prompts of a tenant's admitted requests. {_WHOSE}",
    labels=(TENANT,),
)
OUTPUT_TOKENS = Metric(
    name="plimsoll_tenant_output_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help=f"Tokens received for clients of a tenant. {_WHOSE}",
    labels=(TENANT,),
)
FIRST_TOKEN = Metric(
    name="plimsoll_tenant_time_to_first_token_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    help="From the arrival of a tenant's request to its first token. Requests that end before are "
    f"not in it. {_WHOSE}",
    labels=(TENANT,),
    buckets=FIRST_TOKEN_BUCKETS,
)
KV_BLOCKS = Metric(
    name="plimsoll_tenant_kv_blocks",
    kind=Kind.GAUGE,
    unit="blocks",
    help="Blocks of the KV pool that running sequences of a tenant hold; one that two of them "
    f"share counts for both. {_WHOSE}",
    labels=(TENANT,),
)

METRICS = (KV_BLOCKS, ADMITTED, FINISHED, REFUSED, PROMPT_TOKENS, OUTPUT_TOKENS, FIRST_TOKEN)
