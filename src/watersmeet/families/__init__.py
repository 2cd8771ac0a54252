"""The join families: one folder each."""
