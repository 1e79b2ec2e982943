"""What a reader of a dashboard chooses: data source, namespace, model, pod."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from service.telemetry.catalog import server

# Never a name: dashboards with the name of a data source work nowhere else.
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def datasource() -> DatasourceVariable:
    """The Prometheus that all queries go to."""
    return DatasourceVariable("datasource").label("Data source").type("prometheus")


def scope() -> tuple[QueryVariable, ...]:
    """Of the servers: each choice is among what the ones before it left."""
    return (
        _label("namespace", "Namespace"),
        _label("model", "Model", "namespace"),
        _label("pod", "Pod", "namespace", "model"),
    )


def _label(name: str, title: str, *narrowed_by: str) -> QueryVariable:
    matchers = ",".join(f'{other}=~"${other}"' for other in narrowed_by)
    query = f"label_values({server.INFO.name}{{{matchers}}}, {name})"
    return (
        QueryVariable(name)
        .label(title)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": name})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Matches series without the label, too: a server scraped without Kubernetes has no pod.
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )
