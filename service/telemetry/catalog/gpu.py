"""GPUs as the driver sees them, whoever uses them: what nvidia-smi shows.

None of these is there on a machine without a driver, but `AVAILABLE`, which is 0 there, and the
count of failures.
"""

from __future__ import annotations

from service.telemetry.catalog.metric import Kind, Label, Metric

# The index that nvidia-smi shows, such as 0; of a part of a GPU (MIG), 0:1.
GPU = Label("gpu", None)

CAPACITY = Metric(
    name="plimsoll_gpu_memory_capacity_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory of the GPU: used, free and reserved.",
    labels=(GPU,),
)
USED = Metric(
    name="plimsoll_gpu_memory_used_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory of the GPU that processes have, those of others included. With an old driver, "
    "which does not tell what is reserved, that too.",
    labels=(GPU,),
)
FREE = Metric(
    name="plimsoll_gpu_memory_free_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory of the GPU that no process has.",
    labels=(GPU,),
)
RESERVED = Metric(
    name="plimsoll_gpu_memory_reserved_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory of the GPU that driver and firmware keep for themselves.",
    labels=(GPU,),
)
PROCESS_MEMORY = Metric(
    name="plimsoll_gpu_process_memory_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory of the GPU that the processes of this server have, their CUDA contexts included. "
    "Only where the driver tells: see plimsoll_gpu_process_memory_known.",
    labels=(GPU,),
)
PROCESS_MEMORY_KNOWN = Metric(
    name="plimsoll_gpu_process_memory_known",
    kind=Kind.GAUGE,
    help="1 where the driver tells what the processes of this server have of the GPU. 0 where it "
    "does not, as in many containers, or where they have none of it.",
    labels=(GPU,),
)
UTILIZATION = Metric(
    name="plimsoll_gpu_utilization_ratio",
    kind=Kind.GAUGE,
    unit="ratio",
    help="Share of the last moments in which the GPU computed anything at all, from 0 to 1.",
    labels=(GPU,),
)
AVAILABLE = Metric(
    name="plimsoll_nvml_available",
    kind=Kind.GAUGE,
    help="1 if the driver answers about all GPUs. 0: no library, no driver, one that has hung or "
    "has lost a GPU for more than 10 s, or it was not to be asked.",
)
SAMPLED = Metric(
    name="plimsoll_gpu_sample_timestamp_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="When every GPU last told all that it can, in Unix time. An old one means a driver that "
    "hangs or a GPU that is lost.",
)
FAILURES = Metric(
    name="plimsoll_gpu_sample_failures_total",
    kind=Kind.COUNTER,
    help="Questions about GPUs that the driver answered with an error.",
)

METRICS = (
    *(CAPACITY, USED, FREE, RESERVED, PROCESS_MEMORY, PROCESS_MEMORY_KNOWN, UTILIZATION),
    *(AVAILABLE, SAMPLED, FAILURES),
)
