"""Lakes: the process that keeps tables of topics up to date, its engines, and `raymq lake`."""
