"""The interactive explorer of runs: ipywidgets where a kernel is live, the same views and controls in an offline page.

`choices` lists the controls that the data allows; everything else is a rendering of that one list: a pandas mask
(`selection`), ipywidgets (`live`) and the page's own controls (`web/controls.js`).
"""
