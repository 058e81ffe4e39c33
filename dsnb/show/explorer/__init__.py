"""The interactive explorer of runs: ipywidgets with a kernel, the same charts and controls in an offline page.

`data` lists the settings that vary and the figures that were measured; `state` says which runs a choice of them
selects. The controls are derived from both: ipywidgets in `live`, those of the page in `web/controls.js`.
"""
