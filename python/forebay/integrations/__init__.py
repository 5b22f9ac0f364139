"""Forebay in other training frameworks. Each module imports its own framework, and nothing here imports any of them."""
