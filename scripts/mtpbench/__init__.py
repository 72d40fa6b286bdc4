"""Measures what multi-token prediction does to the speed of a model on one device."""
