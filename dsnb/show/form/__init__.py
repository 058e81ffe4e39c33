"""A form in JupyterLab that designs a sweep: what it would run and cost, its params file, and the sweep itself."""
