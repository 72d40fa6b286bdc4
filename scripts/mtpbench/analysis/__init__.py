"""Pure functions of the records: what a result means, and whether it may be believed."""
