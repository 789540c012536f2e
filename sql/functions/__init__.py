"""The functions a query may call, one table a theme; what stands in none of them is refused."""
