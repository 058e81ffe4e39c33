"""What every room uses: errors, files, the machine, formulas."""
