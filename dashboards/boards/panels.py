"""Kinds of panels. None comes without a unit, and what it means and what to do about it.

Panels that show one value ask for the present one alone: the last known value of a series that
is gone would look like good news.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.boards.queries import Query
from dashboards.boards.variables import DATASOURCE

PanelBuilder: TypeAlias = Builder[models.Panel]


class Unit(enum.Enum):
    """How values are written."""

    BYTES = units.BytesIEC
    BYTES_PER_SECOND = units.BytesPerSecondIEC
    SECONDS = units.Seconds
    AGE = units.DateTimeFromNow  # of a time in milliseconds
    SHARE = units.PercentUnit  # of 1
    COUNT = units.Short
    REQUESTS_PER_SECOND = units.RequestsPerSecond
    TOKENS_PER_SECOND = "suffix: tok/s"


@dataclass(frozen=True, slots=True)
class Limits:
    """From which value on another colour holds."""

    base: str  # the colour below the first step
    steps: tuple[tuple[float, str], ...] = ()

    def build(self) -> builders.ThresholdsConfig:
        """As the builders of panels want them."""
        steps = [models.Threshold(value=None, color=self.base)]
        steps += [models.Threshold(value=value, color=color) for value, color in self.steps]
        return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


# Without limits Grafana would paint all above 80 red, whatever the unit.
NO_LIMITS = Limits("green")
ANY_IS_BAD = Limits("green", ((1, "red"),))


@dataclass(frozen=True, slots=True)
class Paint:
    """Look of the series whose names match."""

    color: str
    dashed: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Note:
    """What the panel shows, and what somebody does who does not like what it shows."""

    means: str
    act: str

    def __str__(self) -> str:
        return f"{self.means}\n\n**What to do:** {self.act}"


class _Panel(Protocol):
    """What the builders of all kinds of panels have in common."""

    def title(self, title: str, /) -> Self: ...
    def description(self, description: str, /) -> Self: ...
    def datasource(self, datasource: models.DataSourceRef, /) -> Self: ...
    def unit(self, unit: str, /) -> Self: ...
    def span(self, w: int, /) -> Self: ...
    def height(self, h: int, /) -> Self: ...
    def targets(self, targets: list[Builder[Dataquery]], /) -> Self: ...
    def thresholds(self, thresholds: Builder[models.ThresholdsConfig], /) -> Self: ...


_P = TypeVar("_P", bound=_Panel)


def lines(
    title: str,
    *queries: Query,
    unit: Unit,
    note: Note,
    width: int = 12,
    height: int = 8,
    limits: Limits = NO_LIMITS,
    paints: Mapping[str, Paint] | None = None,
    stacked: bool = False,
    full: float | None = None,
    axis: str = "",
) -> PanelBuilder:
    """Values over time. `paints` is by a regular expression of how names of series end, since
    they begin with whatever servers are called; `full` is the top of the axis."""
    targets = [_over_time(index, query) for index, query in enumerate(queries)]
    panel = _framed(timeseries.Panel(), title, targets, unit, note, width, height, limits)
    panel.min(0).line_width(2).fill_opacity(35 if stacked else 5).axis_label(axis)
    panel.show_points(looks.VisibilityMode.NEVER).legend(_legend(width)).tooltip(_tooltip())
    # Gaps stay gaps: a line over a time without data hides that nobody looked.
    panel.span_nulls(False)
    if full is not None:
        panel.max(full)
    elif unit in (Unit.SHARE, Unit.COUNT):
        # Of a line that lies at 0 the axis would otherwise end at 100, which is 10000 %.
        panel.axis_soft_max(limits.steps[-1][0] if limits.steps else 1)
    if stacked:
        panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("all"))
    if limits.steps:
        style = common.GraphThresholdsStyleConfig().mode(looks.GraphThresholdsStyleMode.DASHED)
        panel.thresholds_style(style)
    for pattern, paint in (paints or {}).items():
        panel.override_by_regexp(f"/{pattern}$/", _properties(paint))
    return panel


def events(
    title: str, *queries: Query, note: Note, width: int = 12, height: int = 8
) -> PanelBuilder:
    """How often something happened, as bars."""
    targets = [_over_time(index, query) for index, query in enumerate(queries)]
    panel = _framed(timeseries.Panel(), title, targets, Unit.COUNT, note, width, height, NO_LIMITS)
    panel.min(0).axis_soft_max(1).draw_style(looks.GraphDrawStyle.BARS).fill_opacity(60)
    panel.stacking(common.StackingConfig().mode(looks.StackingMode.NORMAL).group("all"))
    return panel.legend(_legend(width)).tooltip(_tooltip())


def value(
    title: str,
    query: Query,
    *,
    unit: Unit,
    note: Note,
    width: int = 3,
    height: int = 4,
    limits: Limits = NO_LIMITS,
    names: Mapping[float, tuple[str, str]] | None = None,
) -> PanelBuilder:
    """One number of now. `names` gives values a text and a colour."""
    panel = _framed(stat.Panel(), title, [_now(0, query)], unit, note, width, height, limits)
    panel.reduce_options(_last()).graph_mode(looks.BigValueGraphMode.NONE)
    panel.color_mode(looks.BigValueColorMode.BACKGROUND).no_value("no data")
    return panel.mappings([*_mappings(names or {}), _nothing_observed()])


def bars(
    title: str,
    *queries: Query,
    unit: Unit,
    note: Note,
    limits: Limits,
    full: float,
    width: int = 12,
    height: int = 8,
) -> PanelBuilder:
    """Numbers of now, one bar a series, of at most `full`."""
    targets = [_now(index, query) for index, query in enumerate(queries)]
    panel = _framed(bargauge.Panel(), title, targets, unit, note, width, height, limits)
    panel.min(0).max(full).reduce_options(_last()).no_value("no data")
    panel.orientation(looks.VizOrientation.HORIZONTAL)
    return panel.display_mode(looks.BarGaugeDisplayMode.GRADIENT)


def timeline(
    title: str,
    *queries: Query,
    names: Mapping[float, tuple[str, str]],
    note: Note,
    width: int = 24,
    height: int = 6,
) -> PanelBuilder:
    """In which state something was when. `names` gives each number its text and colour."""
    targets = [_over_time(index, query) for index, query in enumerate(queries)]
    panel = _framed(
        statetimeline.Panel(), title, targets, Unit.COUNT, note, width, height, NO_LIMITS
    )
    panel.mappings(_mappings(names)).merge_values(True).row_height(0.9)
    return panel.show_value(looks.VisibilityMode.AUTO).tooltip(_tooltip())


def distribution(
    title: str, buckets: str, *, unit: Unit, note: Note, width: int = 12, height: int = 8
) -> PanelBuilder:
    """Observations of a histogram over time, with the traces of some."""
    target = _target(0, Query(buckets, "{{le}}")).range().format(PromQueryFormat.HEATMAP)
    target.exemplar(True)
    panel = _framed(heatmap.Panel(), title, [target], unit, note, width, height, NO_LIMITS)
    panel.calculate(False).y_axis(heatmap.YAxisConfig().unit(unit.value))
    return panel.cell_values(heatmap.CellValues().unit(Unit.COUNT.value))


def _framed(
    panel: _P,
    title: str,
    targets: Sequence[Builder[Dataquery]],
    unit: Unit,
    note: Note,
    width: int,
    height: int,
    limits: Limits,
) -> _P:
    framed = panel.title(title).description(str(note)).datasource(DATASOURCE)
    framed = framed.span(width).height(height).unit(unit.value)
    return framed.targets(list(targets)).thresholds(limits.build())


def _target(index: int, query: Query) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
    return target.ref_id(chr(ord("A") + index)).datasource(DATASOURCE)


def _over_time(index: int, query: Query) -> prometheus.Dataquery:
    return _target(index, query).range()


def _now(index: int, query: Query) -> prometheus.Dataquery:
    return _target(index, query).instant()


def _legend(width: int) -> common.VizLegendOptions:
    # Beside the lines where there is room: below them only a few names can be seen.
    side = looks.LegendPlacement.RIGHT if width > 12 else looks.LegendPlacement.BOTTOM
    legend = common.VizLegendOptions().display_mode(looks.LegendDisplayMode.TABLE)
    return legend.placement(side).show_legend(True).calcs(["last", "max"])


def _tooltip() -> common.VizTooltipOptions:
    tooltip = common.VizTooltipOptions().mode(looks.TooltipDisplayMode.MULTI)
    return tooltip.sort(looks.SortOrder.DESCENDING)


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["last"]).values(False)


def _mappings(names: Mapping[float, tuple[str, str]]) -> list[models.ValueMapping]:
    options = {
        f"{number:g}": models.ValueMappingResult(text=text, color=color, index=index)
        for index, (number, (text, color)) in enumerate(names.items())
    }
    return [models.ValueMap(options=options)] if options else []


def _nothing_observed() -> models.ValueMapping:
    """No number, as of a quantile while there are no requests, is no trouble."""
    result = models.ValueMappingResult(text="none now", color="text")
    match = models.SpecialValueMatch.NA_N
    options = models.DashboardSpecialValueMapOptions(match=match, result=result)
    return models.SpecialValueMap(options=options)


def _properties(paint: Paint) -> list[models.DynamicConfigValue]:
    color: object = {"mode": "fixed", "fixedColor": paint.color}
    properties = [
        models.DynamicConfigValue(id_val="color", value=color),
        models.DynamicConfigValue(id_val="custom.fillOpacity", value=20 if paint.filled else 0),
    ]
    if paint.dashed:
        dashes: object = {"fill": "dash", "dash": [10, 10]}
        properties.append(models.DynamicConfigValue(id_val="custom.lineStyle", value=dashes))
    return properties
