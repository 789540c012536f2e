"""One outside system per folder; SDK errors become ours here and nowhere else."""
