"""InjectFaults: from the faults of a request to a plan, and back. Pure.

Field by field by their names, which are the same in `service.faults.plan` but for the unit at
the end: a Duration `hold` there is `hold_seconds` here. A test holds them against each other.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from msgspec.structs import FieldInfo

from service.api.answers import duration
from service.api.checks import Checks, seconds_of
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.api.gen.plimsoll.v1 import faults_pb2
from service.faults.plan import MAX_FAULTS, Fault, FaultPlan

_KINDS: dict[str, type[msgspec.Struct]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(Fault)
}
_OWNER_PREFIX = "MEMORY_OWNER_"


def check_faults_request(request: pb.InjectFaultsRequest) -> FaultPlan:
    """Raises InvalidRequest with every field that is out of its limits."""
    checks = Checks()
    faults = []
    if checks.count("faults", request.faults, 0, MAX_FAULTS):
        for index, message in enumerate(request.faults):
            fault = _read_fault(message, checks.under(f"faults[{index}]"))
            if fault is not None:
                faults.append(fault)
    checks.finish()
    return FaultPlan(faults)


def faults_request(plan: FaultPlan) -> pb.InjectFaultsRequest:
    """The request that orders this plan."""
    return pb.InjectFaultsRequest(faults=[_fault_message(fault) for fault in plan.faults])


def _read_fault(message: faults_pb2.Fault, checks: Checks) -> Fault | None:
    """None when something was refused."""
    name = message.WhichOneof("kind")
    if name is None:
        checks.refuse("kind", None, f"must be one of {', '.join(_KINDS)}")
        return None
    kind = _KINDS[name]
    infos = {info.name: info for info in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    refused = not _read_fields(message, infos, values, checks, only="after")
    refused |= not _read_fields(getattr(message, name), infos, values, checks.under(name))
    return None if refused else kind(**values)  # type: ignore[return-value]  # one of them


def _read_fields(
    message: Message,
    infos: dict[str, FieldInfo],
    values: dict[str, Any],
    checks: Checks,
    only: str | None = None,
) -> bool:
    """Puts the fields of a message into `values`; whether all of them are within their limits."""
    good = True
    for field in message.DESCRIPTOR.fields:
        if only is not None and field.name != only:
            continue
        info = infos[_plan_name(field)]
        is_set = (
            message.HasField(field.name) if field.has_presence else getattr(message, field.name)
        )
        if not is_set:
            if info.required:
                checks.refuse(field.name, None, "must be set")
                good = False
            continue
        value = _read_value(field, getattr(message, field.name))
        try:
            values[info.name] = msgspec.convert(value, info.type)
        except msgspec.ValidationError as error:
            limit = str(error).replace("Expected", "must be").replace("`", "")
            checks.refuse(field.name, value, limit)
            good = False
    return good


def _read_value(field: FieldDescriptor, value: Any) -> object:
    if isinstance(value, Duration):
        return seconds_of(value)
    if field.enum_type is not None and value in field.enum_type.values_by_number:
        name: str = field.enum_type.values_by_number[value].name
        return name.removeprefix(_OWNER_PREFIX).lower()
    return value


def _fault_message(fault: Fault) -> faults_pb2.Fault:
    message = faults_pb2.Fault(after=duration(fault.after_seconds))
    kind = getattr(message, str(fault.__struct_config__.tag))
    kind.SetInParent()
    for field in kind.DESCRIPTOR.fields:
        value = getattr(fault, _plan_name(field))
        if field.message_type is not None:
            getattr(kind, field.name).CopyFrom(duration(value))
        elif field.enum_type is not None:
            number = field.enum_type.values_by_name[_OWNER_PREFIX + value.upper()].number
            setattr(kind, field.name, number)
        else:
            setattr(kind, field.name, value)
    return message


def _plan_name(field: FieldDescriptor) -> str:
    """What the plan calls this field."""
    return f"{field.name}_seconds" if field.message_type is not None else field.name
