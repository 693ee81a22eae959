"""Tenfold: a reproducible, tracked training pipeline for image classification."""

__version__ = "0.1.0"
