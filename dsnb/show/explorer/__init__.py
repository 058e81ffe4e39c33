"""The interactive explorer of runs: ipywidgets with a kernel, the same charts and controls in an offline page.

`data` lists the settings that vary and the figures that were measured; `state` says which runs a
choice of them selects; `payload` is what the page gets of both. The page (`web/`) filters, sorts
and draws: its controls are in `web/controls.js`, its charts in `charts.yaml`, and `live` shows it
as a widget that shares its state.
"""
