"""What people see: the explorer, tables and figures, the report, the form."""
