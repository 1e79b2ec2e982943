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

_KINDS: dict[str, type[Fault]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Fault)}
_OWNER_PREFIX = "MEMORY_OWNER_"


def check_faults_request(request: pb.InjectFaultsRequest) -> FaultPlan:
    """Raises InvalidRequest with every field that is out of its limits."""
    checks = Checks()
    drafts = []
    if checks.count("faults", request.faults, 0, MAX_FAULTS):
        for index, message in enumerate(request.faults):
            drafts.append(_read_fault(message, checks.under(f"faults[{index}]")))
    checks.finish()
    # Past this point every value is within its limits.
    return FaultPlan([_KINDS[name](**values) for name, values in drafts])


def faults_request(plan: FaultPlan) -> pb.InjectFaultsRequest:
    """The request that orders this plan."""
    return pb.InjectFaultsRequest(faults=[_fault_message(fault) for fault in plan.faults])


def _read_fault(message: faults_pb2.Fault, checks: Checks) -> tuple[str, dict[str, Any]]:
    """Kind and fields of a fault, as far as they are within their limits."""
    name = message.WhichOneof("kind")
    if name is None:
        checks.refuse("kind", None, f"must be one of {', '.join(_KINDS)}")
        return "", {}
    infos = {info.name: info for info in msgspec.structs.fields(_KINDS[name])}
    after = message.DESCRIPTOR.fields_by_name["after"]
    values = _read_field(message, after, infos, checks)
    kind = getattr(message, name)
    for field in kind.DESCRIPTOR.fields:
        values |= _read_field(kind, field, infos, checks.under(name))
    return name, values


def _read_field(
    message: Message, field: FieldDescriptor, infos: dict[str, FieldInfo], checks: Checks
) -> dict[str, Any]:
    """The value by its name in the plan; empty if it is not set, or refused."""
    info = infos[_plan_name(field)]
    value = getattr(message, field.name)
    if not (message.HasField(field.name) if field.has_presence else value):
        if info.required:
            checks.refuse(field.name, None, "must be set")
        return {}
    shown = _read_value(field, value)
    try:
        return {info.name: msgspec.convert(shown, info.type)}
    except msgspec.ValidationError as error:
        limit = str(error).replace("Expected", "must be").replace("`", "")
        checks.refuse(field.name, shown, limit)
        return {}


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
